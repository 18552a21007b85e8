// The ends of flow queues of one item size, for the files made of ends_of_size.cpp.in.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "bench/framework/payload.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/ring/every_design.hpp"
#include "named_designs.hpp"
#include "queue_ends.hpp"

namespace millrace::bench {

template <std::size_t Size>
struct alignas(Size >= 8 ? 8 : 4) FlowItem {
    std::array<std::byte, Size> bytes;

    void stamp(std::uint32_t number) noexcept {
        std::memcpy(bytes.data(), &number, sizeof(number));
        std::memcpy(bytes.data() + Size - sizeof(number), &number, sizeof(number));
    }
    [[nodiscard]] bool has(std::uint32_t number) const noexcept {
        std::uint32_t first = 0;
        std::uint32_t last = 0;
        std::memcpy(&first, bytes.data(), sizeof(first));
        std::memcpy(&last, bytes.data() + Size - sizeof(last), sizeof(last));
        return first == number && last == number;
    }
};

template <std::size_t Size, ring::Design D>
class ProducingEndOf final : public ProducingEnd {
  public:
    using Producer = flow::Producer<FlowItem<Size>, D>;
    explicit ProducingEndOf(Producer producer) : producer_{std::move(producer)} {}
    base::Status try_put(std::uint32_t number) override {
        item_.stamp(number);
        return producer_.try_enqueue(item_);
    }
    base::Status flush(const base::Deadline& deadline) override {
        return producer_.flush(deadline);
    }
    base::Status close(const base::Deadline& deadline) override {
        return producer_.close(deadline);
    }
    flow::ProducerStats stats() override { return producer_.stats(); }

  private:
    Producer producer_;
    FlowItem<Size> item_{};
};

template <std::size_t Size, ring::Design D>
class ConsumingEndOf final : public ConsumingEnd {
  public:
    using Consumer = flow::Consumer<FlowItem<Size>, D>;
    explicit ConsumingEndOf(Consumer consumer) : consumer_{std::move(consumer)} {}
    base::Status try_take(std::uint32_t number) override {
        const base::Status status = consumer_.try_dequeue(item_);
        if (status == base::Status::ok)
            require_intact(item_.has(number), "an item of a flow queue");
        return status;
    }
    flow::ConsumerStats stats() override { return consumer_.stats(); }

  private:
    Consumer consumer_;
    FlowItem<Size> item_{};
};

template <std::size_t Size, ring::Design D>
inline constexpr EndMakers makers_of{
    [](ring::Design design, flow::Listener& listener,
       const base::Deadline& deadline) -> std::unique_ptr<ProducingEnd> {
        using End = ProducingEndOf<Size, D>;
        return std::make_unique<End>(End::Producer::accept_as(design, listener, deadline));
    },
    [](ring::Design design, flow::Listener& listener,
       const base::Deadline& deadline) -> std::unique_ptr<ConsumingEnd> {
        using End = ConsumingEndOf<Size, D>;
        return std::make_unique<End>(End::Consumer::accept_as(design, listener, deadline));
    },
    [](ring::Design design, const connect::Address& address, const flow::Options& options,
       const base::Deadline& deadline) -> std::unique_ptr<ProducingEnd> {
        using End = ProducingEndOf<Size, D>;
        return std::make_unique<End>(End::Producer::connect_as(design, address, options, deadline));
    },
    [](ring::Design design, const connect::Address& address, const flow::Options& options,
       const base::Deadline& deadline) -> std::unique_ptr<ConsumingEnd> {
        using End = ConsumingEndOf<Size, D>;
        return std::make_unique<End>(End::Consumer::connect_as(design, address, options, deadline));
    }};

template <std::size_t Size>
const EndMakers* makers_of_size(ring::Design asked) {
    const ring::Design design = ring::flows_of(asked);
#define MILLRACE_CASE(D) \
    if (design == D) return &makers_of<Size, D>;
    MILLRACE_NAMED_DESIGNS(MILLRACE_CASE)
    if constexpr (std::find(std::begin(whole_sizes), std::end(whole_sizes), Size) !=
                  std::end(whole_sizes)) {
        MILLRACE_EVERY_DESIGN(MILLRACE_CASE)
    }
#undef MILLRACE_CASE
    return nullptr;
}

}  // namespace millrace::bench
