// AnyConsumer, see any.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/any_end.hpp"
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
  public:
    using Seen = detail::Seen<T>;

    [[nodiscard]] static AnyConsumer connect(ring::Design design, const connect::Address& address,
                                             Options options, const base::Deadline& deadline);
    [[nodiscard]] static AnyConsumer listen(ring::Design design, const connect::Address& address,
                                            Options options, const base::Deadline& deadline) {
        Listener listener = detail::listen_for_one(address, std::move(options));
        return accept(design, listener, deadline);
    }
    /// None yet, or the end for the next peer: see Factories::try_accept.
    [[nodiscard]] static std::optional<AnyConsumer> try_accept(ring::Design design,
                                                               Listener& listener);
    [[nodiscard]] static AnyConsumer accept(ring::Design design, Listener& listener,
                                            const base::Deadline& deadline);

    // For a Connector: see Factories, and the ends of a fixed design.
    static constexpr ring::Role role = ring::Role::consumer;
    [[nodiscard]] static detail::ItemFacts its_items() { return detail::item_facts<T>(); }
    [[nodiscard]] static AnyConsumer over_as(ring::Design design, detail::Connection connection,
                                             Options options, const base::Deadline& deadline);
    [[nodiscard]] bool has_joined();
    void await_join(const base::Deadline& deadline);

    [[nodiscard]] ring::Design design() const noexcept { return end_.design(); }
    base::Status try_dequeue(detail::Taken<T>& item);
    base::Status dequeue(detail::Taken<T>& item, const base::Deadline& deadline);
    [[nodiscard]] BatchResult try_dequeue_batch(std::span<detail::Taken<T>> items);
    base::Status peek(Seen& item);
    base::Status peek(Seen& item, const base::Deadline& deadline);
    void release();
    void close();
    base::Status look_around();
    [[nodiscard]] int descriptor();
    [[nodiscard]] std::uint64_t capacity() const;
    [[nodiscard]] ConsumerStats stats() const;
    [[nodiscard]] std::string explain() const;
    [[nodiscard]] std::string failure() const;

  private:
    using End = detail::AnyEnd<Consumer, T>;
    explicit AnyConsumer(End end) : end_{std::move(end)} {}
    End end_;
};

// Not inline, as those of AnyProducer.
template <class T>
AnyConsumer<T> AnyConsumer<T>::connect(ring::Design design, const connect::Address& address,
                                       Options options, const base::Deadline& deadline) {
    return AnyConsumer{End::connect(design, address, std::move(options), deadline)};
}
template <class T>
AnyConsumer<T> AnyConsumer<T>::over_as(ring::Design design, detail::Connection connection,
                                       Options options, const base::Deadline& deadline) {
    return AnyConsumer{End::over(design, std::move(connection), std::move(options), deadline)};
}
template <class T>
bool AnyConsumer<T>::has_joined() {
    return end_.ask([](auto& end) { return end.has_joined(); });
}
template <class T>
void AnyConsumer<T>::await_join(const base::Deadline& deadline) {
    end_.ask([&](auto& end) { end.await_join(deadline); });
}
template <class T>
std::optional<AnyConsumer<T>> AnyConsumer<T>::try_accept(ring::Design design, Listener& listener) {
    std::optional<AnyConsumer> accepted;
    if (auto end = End::try_accept(design, listener)) {
        accepted.emplace(AnyConsumer{std::move(*end)});
    }
    return accepted;
}
template <class T>
AnyConsumer<T> AnyConsumer<T>::accept(ring::Design design, Listener& listener,
                                      const base::Deadline& deadline) {
    return AnyConsumer{End::accept(design, listener, deadline)};
}

template <class T>
base::Status AnyConsumer<T>::try_dequeue(detail::Taken<T>& item) {
    return end_.ask([&](auto& end) { return end.try_dequeue(item); });
}
template <class T>
base::Status AnyConsumer<T>::dequeue(detail::Taken<T>& item, const base::Deadline& deadline) {
    return end_.ask([&](auto& end) { return end.dequeue(item, deadline); });
}
template <class T>
BatchResult AnyConsumer<T>::try_dequeue_batch(std::span<detail::Taken<T>> items) {
    return end_.ask([&](auto& end) { return end.try_dequeue_batch(items); });
}
template <class T>
base::Status AnyConsumer<T>::peek(Seen& item) {
    return end_.ask([&](auto& end) { return end.peek(item); });
}
template <class T>
base::Status AnyConsumer<T>::peek(Seen& item, const base::Deadline& deadline) {
    return end_.ask([&](auto& end) { return end.peek(item, deadline); });
}
template <class T>
void AnyConsumer<T>::release() {
    end_.ask([](auto& end) { end.release(); });
}
template <class T>
void AnyConsumer<T>::close() {
    end_.ask([](auto& end) { end.close(); });
}
template <class T>
base::Status AnyConsumer<T>::look_around() {
    return end_.ask([](auto& end) { return end.look_around(); });
}
template <class T>
int AnyConsumer<T>::descriptor() {
    return end_.ask([](auto& end) { return end.descriptor(); });
}
template <class T>
std::uint64_t AnyConsumer<T>::capacity() const {
    return end_.ask([](auto& end) { return end.capacity(); });
}
template <class T>
ConsumerStats AnyConsumer<T>::stats() const {
    return end_.ask([](auto& end) { return end.stats(); });
}
template <class T>
std::string AnyConsumer<T>::explain() const {
    return end_.ask([](auto& end) { return end.explain(); });
}
template <class T>
std::string AnyConsumer<T>::failure() const {
    return end_.ask([](auto& end) { return end.failure(); });
}

}  // namespace millrace::flow
