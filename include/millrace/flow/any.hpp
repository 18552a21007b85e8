// Flow queues whose design is chosen at run time, among all 33 points of the design space, each
// with any batching and mover:
//
//     const auto named = ring::parse_design("push1/watermark/pull+fixed16");
//     auto producer = flow::AnyProducer<Item>::connect(named.design, "host:7000",
//                                                      {.batch = named.batch}, deadline);
//
// Each call costs a virtual call more than Producer and Consumer of a fixed design; what travels is
// the same, and either end of a queue may be the one or the other. Including this file makes the
// ends of every design for every item type it is used with, which takes the compiler a while.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/ring/every_design.hpp"

namespace millrace::flow {

namespace detail {

/// Calls `make` with the flows of the design as template argument. Throws Error (invalid_argument)
/// for combinations that are no point.
template <class Make>
auto with_design(ring::Design design, Make&& make) {
    const ring::Design flows = ring::flows_of(design);
#define MILLRACE_CASE(D) \
    if (flows == D) return make.template operator()<D>();
    MILLRACE_EVERY_DESIGN(MILLRACE_CASE)
#undef MILLRACE_CASE
    ring::require_valid(design);
    throw base::Error{base::ErrorCode::unsupported, "make a flow queue", ring::to_string(design),
                      "this library does not build that point", "choose another of docs/flow.md"};
}

/// What an item is where it is passed in.
template <class T>
using Given = std::conditional_t<std::is_same_v<T, Bytes>, std::span<const std::byte>, const T&>;
/// And where it is copied out.
template <class T>
using Taken = std::conditional_t<std::is_same_v<T, Bytes>, std::vector<std::byte>, T>;

}  // namespace detail

/// A Producer<T, D> of any D; see there. Move-only.
template <class T>
class AnyProducer {
    struct Interface {
        virtual ~Interface() = default;
        virtual base::Status try_enqueue(detail::Given<T> item) = 0;
        virtual base::Status enqueue(detail::Given<T> item, const base::Deadline&) = 0;
        virtual base::Status flush(const base::Deadline&) = 0;
        virtual base::Status close(const base::Deadline&) = 0;
        [[nodiscard]] virtual std::uint64_t capacity() const = 0;
        [[nodiscard]] virtual ProducerStats stats() = 0;
        [[nodiscard]] virtual std::string explain() const = 0;
    };
    template <ring::Design D>
    struct Model final : Interface {
        explicit Model(Producer<T, D> end) : producer{std::move(end)} {}
        base::Status try_enqueue(detail::Given<T> item) override {
            return producer.try_enqueue(item);
        }
        base::Status enqueue(detail::Given<T> item, const base::Deadline& deadline) override {
            return producer.enqueue(item, deadline);
        }
        base::Status flush(const base::Deadline& deadline) override {
            return producer.flush(deadline);
        }
        base::Status close(const base::Deadline& deadline) override {
            return producer.close(deadline);
        }
        std::uint64_t capacity() const override { return producer.capacity(); }
        ProducerStats stats() override { return producer.stats(); }
        std::string explain() const override { return producer.explain(); }
        Producer<T, D> producer;
    };

  public:
    [[nodiscard]] static AnyProducer connect(ring::Design design, std::string_view address,
                                             Options options, const base::Deadline& deadline) {
        return make(design, [&]<ring::Design D>() {
            return Producer<T, D>::connect_as(design, connect::Address::parse(address),
                                              std::move(options), deadline);
        });
    }
    [[nodiscard]] static AnyProducer listen(ring::Design design, std::string_view address,
                                            Options options, const base::Deadline& deadline) {
        Listener listener = Listener::listen(address, std::move(options));
        return accept(design, listener, deadline);
    }
    [[nodiscard]] static AnyProducer accept(ring::Design design, Listener& listener,
                                            const base::Deadline& deadline) {
        return make(design, [&]<ring::Design D>() {
            return Producer<T, D>::accept_as(design, listener, deadline);
        });
    }

    [[nodiscard]] ring::Design design() const noexcept { return design_; }
    base::Status try_enqueue(detail::Given<T> item) { return end_->try_enqueue(item); }
    base::Status enqueue(detail::Given<T> item, const base::Deadline& deadline) {
        return end_->enqueue(item, deadline);
    }
    base::Status flush(const base::Deadline& deadline) { return end_->flush(deadline); }
    base::Status close(const base::Deadline& deadline) { return end_->close(deadline); }
    [[nodiscard]] std::uint64_t capacity() const { return end_->capacity(); }
    [[nodiscard]] ProducerStats stats() { return end_->stats(); }
    [[nodiscard]] std::string explain() const { return end_->explain(); }

  private:
    AnyProducer(ring::Design design, std::unique_ptr<Interface> end)
        : design_{design}, end_{std::move(end)} {}
    template <class Make>
    static AnyProducer make(ring::Design design, Make&& make_end) {
        return AnyProducer{
            design,
            detail::with_design(design, [&]<ring::Design D>() -> std::unique_ptr<Interface> {
                return std::make_unique<Model<D>>(make_end.template operator()<D>());
            })};
    }
    ring::Design design_;
    std::unique_ptr<Interface> end_;
};

/// A Consumer<T, D> of any D; see there. Move-only.
template <class T>
class AnyConsumer {
    struct Interface {
        virtual ~Interface() = default;
        virtual base::Status try_dequeue(detail::Taken<T>& item) = 0;
        virtual base::Status dequeue(detail::Taken<T>& item, const base::Deadline&) = 0;
        virtual void close() = 0;
        [[nodiscard]] virtual std::uint64_t capacity() const = 0;
        [[nodiscard]] virtual ConsumerStats stats() = 0;
        [[nodiscard]] virtual std::string explain() const = 0;
    };
    template <ring::Design D>
    struct Model final : Interface {
        explicit Model(Consumer<T, D> end) : consumer{std::move(end)} {}
        base::Status try_dequeue(detail::Taken<T>& item) override {
            return consumer.try_dequeue(item);
        }
        base::Status dequeue(detail::Taken<T>& item, const base::Deadline& deadline) override {
            return consumer.dequeue(item, deadline);
        }
        void close() override { consumer.close(); }
        std::uint64_t capacity() const override { return consumer.capacity(); }
        ConsumerStats stats() override { return consumer.stats(); }
        std::string explain() const override { return consumer.explain(); }
        Consumer<T, D> consumer;
    };

  public:
    [[nodiscard]] static AnyConsumer connect(ring::Design design, std::string_view address,
                                             Options options, const base::Deadline& deadline) {
        return make(design, [&]<ring::Design D>() {
            return Consumer<T, D>::connect_as(design, connect::Address::parse(address),
                                              std::move(options), deadline);
        });
    }
    [[nodiscard]] static AnyConsumer listen(ring::Design design, std::string_view address,
                                            Options options, const base::Deadline& deadline) {
        Listener listener = Listener::listen(address, std::move(options));
        return accept(design, listener, deadline);
    }
    [[nodiscard]] static AnyConsumer accept(ring::Design design, Listener& listener,
                                            const base::Deadline& deadline) {
        return make(design, [&]<ring::Design D>() {
            return Consumer<T, D>::accept_as(design, listener, deadline);
        });
    }

    [[nodiscard]] ring::Design design() const noexcept { return design_; }
    base::Status try_dequeue(detail::Taken<T>& item) { return end_->try_dequeue(item); }
    base::Status dequeue(detail::Taken<T>& item, const base::Deadline& deadline) {
        return end_->dequeue(item, deadline);
    }
    void close() { end_->close(); }
    [[nodiscard]] std::uint64_t capacity() const { return end_->capacity(); }
    [[nodiscard]] ConsumerStats stats() { return end_->stats(); }
    [[nodiscard]] std::string explain() const { return end_->explain(); }

  private:
    AnyConsumer(ring::Design design, std::unique_ptr<Interface> end)
        : design_{design}, end_{std::move(end)} {}
    template <class Make>
    static AnyConsumer make(ring::Design design, Make&& make_end) {
        return AnyConsumer{
            design,
            detail::with_design(design, [&]<ring::Design D>() -> std::unique_ptr<Interface> {
                return std::make_unique<Model<D>>(make_end.template operator()<D>());
            })};
    }
    ring::Design design_;
    std::unique_ptr<Interface> end_;
};

}  // namespace millrace::flow
