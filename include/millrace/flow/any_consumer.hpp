// AnyConsumer, see any.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

/// A Consumer<T, D> of any D; see there for what the calls do. Move-only.
template <class T>
class AnyConsumer {
    struct Interface {
        virtual ~Interface() = default;
        virtual base::Status try_dequeue(detail::Taken<T>& item) = 0;
        virtual base::Status dequeue(detail::Taken<T>& item, const base::Deadline&) = 0;
        [[nodiscard]] virtual BatchResult try_dequeue_batch(std::span<detail::Taken<T>> items) = 0;
        virtual base::Status peek(detail::Seen<T>& item) = 0;
        virtual base::Status peek(detail::Seen<T>& item, const base::Deadline&) = 0;
        virtual void release() = 0;
        virtual void close() = 0;
        [[nodiscard]] virtual int descriptor() = 0;
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
        BatchResult try_dequeue_batch(std::span<detail::Taken<T>> items) override {
            return consumer.try_dequeue_batch(items);
        }
        base::Status peek(detail::Seen<T>& item) override { return consumer.peek(item); }
        base::Status peek(detail::Seen<T>& item, const base::Deadline& deadline) override {
            return consumer.peek(item, deadline);
        }
        void release() override { consumer.release(); }
        void close() override { consumer.close(); }
        int descriptor() override { return consumer.descriptor(); }
        std::uint64_t capacity() const override { return consumer.capacity(); }
        ConsumerStats stats() override { return consumer.stats(); }
        std::string explain() const override { return consumer.explain(); }
        Consumer<T, D> consumer;
    };

  public:
    using Seen = detail::Seen<T>;

    [[nodiscard]] static AnyConsumer connect(ring::Design design, const connect::Address& address,
                                             Options options, const base::Deadline& deadline);
    [[nodiscard]] static AnyConsumer listen(ring::Design design, const connect::Address& address,
                                            Options options, const base::Deadline& deadline) {
        Listener listener = Listener::listen(address, std::move(options));
        return accept(design, listener, deadline);
    }
    /// None yet, or the end for the next peer: see Factories::try_accept.
    [[nodiscard]] static std::optional<AnyConsumer> try_accept(ring::Design design,
                                                               Listener& listener);
    [[nodiscard]] static AnyConsumer accept(ring::Design design, Listener& listener,
                                            const base::Deadline& deadline);

    [[nodiscard]] ring::Design design() const noexcept { return design_; }
    base::Status try_dequeue(detail::Taken<T>& item) { return end_->try_dequeue(item); }
    base::Status dequeue(detail::Taken<T>& item, const base::Deadline& deadline) {
        return end_->dequeue(item, deadline);
    }
    [[nodiscard]] BatchResult try_dequeue_batch(std::span<detail::Taken<T>> items) {
        return end_->try_dequeue_batch(items);
    }
    base::Status peek(detail::Seen<T>& item) { return end_->peek(item); }
    base::Status peek(detail::Seen<T>& item, const base::Deadline& deadline) {
        return end_->peek(item, deadline);
    }
    void release() { end_->release(); }
    void close() { end_->close(); }
    [[nodiscard]] int descriptor() { return end_->descriptor(); }
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

// Not inline, as those of AnyProducer.
template <class T>
AnyConsumer<T> AnyConsumer<T>::connect(ring::Design design, const connect::Address& address,
                                       Options options, const base::Deadline& deadline) {
    return make(design, [&]<ring::Design D>() {
        return Consumer<T, D>::connect_as(design, address, std::move(options), deadline);
    });
}
template <class T>
std::optional<AnyConsumer<T>> AnyConsumer<T>::try_accept(ring::Design design, Listener& listener) {
    std::optional<AnyConsumer> accepted;
    detail::with_design(design, [&]<ring::Design D>() {
        if (auto end = Consumer<T, D>::try_accept_as(design, listener)) {
            accepted.emplace(AnyConsumer{design, std::make_unique<Model<D>>(std::move(*end))});
        }
    });
    return accepted;
}
template <class T>
AnyConsumer<T> AnyConsumer<T>::accept(ring::Design design, Listener& listener,
                                      const base::Deadline& deadline) {
    return make(design, [&]<ring::Design D>() {
        return Consumer<T, D>::accept_as(design, listener, deadline);
    });
}

}  // namespace millrace::flow
