// AnyProducer, see any.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/any_end.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::flow {

/// A Producer<T, D> of any D; see there for what the calls do. Move-only.
template <class T>
class AnyProducer {
    static constexpr bool framed = std::is_same_v<T, Bytes>;

  public:
    using Item = std::remove_cvref_t<detail::Given<T>>;

    [[nodiscard]] static AnyProducer connect(ring::Design design, const connect::Address& address,
                                             Options options, const base::Deadline& deadline);
    [[nodiscard]] static AnyProducer listen(ring::Design design, const connect::Address& address,
                                            Options options, const base::Deadline& deadline) {
        Listener listener = detail::listen_for_one(address, std::move(options));
        return accept(design, listener, deadline);
    }
    /// None yet, or the end for the next peer: see Factories::try_accept.
    [[nodiscard]] static std::optional<AnyProducer> try_accept(ring::Design design,
                                                               Listener& listener);
    [[nodiscard]] static AnyProducer accept(ring::Design design, Listener& listener,
                                            const base::Deadline& deadline);

    // For a Connector: see Factories, and the ends of a fixed design.
    static constexpr ring::Role role = ring::Role::producer;
    [[nodiscard]] static detail::ItemFacts its_items() { return detail::item_facts<T>(); }
    [[nodiscard]] static AnyProducer over_as(ring::Design design, detail::Connection connection,
                                             Options options, const base::Deadline& deadline);
    [[nodiscard]] bool has_joined();
    void await_join(const base::Deadline& deadline);

    [[nodiscard]] ring::Design design() const noexcept { return end_.design(); }
    base::Status try_enqueue(detail::Given<T> item);
    base::Status enqueue(detail::Given<T> item, const base::Deadline& deadline);
    [[nodiscard]] BatchResult try_enqueue_batch(std::span<const Item> items);

    // ---- in place
    base::Status claim(T*& place)
        requires(!framed);
    base::Status claim(T*& place, const base::Deadline& deadline)
        requires(!framed);
    base::Status claim(std::size_t size, std::span<std::byte>& place)
        requires framed;
    base::Status claim(std::size_t size, std::span<std::byte>& place,
                       const base::Deadline& deadline)
        requires framed;
    base::Status commit();
    base::Status commit(std::size_t size)
        requires framed;
    [[nodiscard]] std::uint64_t max_size() const
        requires framed;

    // ---- items that lie elsewhere
    /// Throws Error (unsupported) unless the data flow is push1.
    [[nodiscard]] verbs::MemoryRegion register_memory(std::span<std::byte> memory)
        requires(!framed);
    /// Where the data flow is not push1, each item is copied.
    [[nodiscard]] BatchResult try_enqueue_gather(const verbs::MemoryRegion& memory,
                                                 std::span<const T* const> items)
        requires(!framed);
    [[nodiscard]] std::uint64_t released()
        requires(!framed);

    base::Status flush(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);
    base::Status look_around();
    [[nodiscard]] int descriptor();
    [[nodiscard]] std::uint64_t capacity() const;
    [[nodiscard]] ProducerStats stats() const;
    [[nodiscard]] std::string explain() const;
    [[nodiscard]] std::string failure() const;

  private:
    using End = detail::AnyEnd<Producer, T>;
    explicit AnyProducer(End end) : end_{std::move(end)} {}
    End end_;
};

// Not inline, so that `extern template class AnyProducer<Item>` compiles the ends of all designs in
// one file only.
template <class T>
AnyProducer<T> AnyProducer<T>::connect(ring::Design design, const connect::Address& address,
                                       Options options, const base::Deadline& deadline) {
    return AnyProducer{End::connect(design, address, std::move(options), deadline)};
}
template <class T>
AnyProducer<T> AnyProducer<T>::over_as(ring::Design design, detail::Connection connection,
                                       Options options, const base::Deadline& deadline) {
    return AnyProducer{End::over(design, std::move(connection), std::move(options), deadline)};
}
template <class T>
bool AnyProducer<T>::has_joined() {
    return end_.ask([](auto& end) { return end.has_joined(); });
}
template <class T>
void AnyProducer<T>::await_join(const base::Deadline& deadline) {
    end_.ask([&](auto& end) { end.await_join(deadline); });
}
template <class T>
std::optional<AnyProducer<T>> AnyProducer<T>::try_accept(ring::Design design, Listener& listener) {
    std::optional<AnyProducer> accepted;
    if (auto end = End::try_accept(design, listener)) {
        accepted.emplace(AnyProducer{std::move(*end)});
    }
    return accepted;
}
template <class T>
AnyProducer<T> AnyProducer<T>::accept(ring::Design design, Listener& listener,
                                      const base::Deadline& deadline) {
    return AnyProducer{End::accept(design, listener, deadline)};
}

template <class T>
base::Status AnyProducer<T>::try_enqueue(detail::Given<T> item) {
    return end_.ask([&](auto& end) { return end.try_enqueue(item); });
}
template <class T>
base::Status AnyProducer<T>::enqueue(detail::Given<T> item, const base::Deadline& deadline) {
    return end_.ask([&](auto& end) { return end.enqueue(item, deadline); });
}
template <class T>
BatchResult AnyProducer<T>::try_enqueue_batch(std::span<const Item> items) {
    return end_.ask([&](auto& end) { return end.try_enqueue_batch(items); });
}
template <class T>
base::Status AnyProducer<T>::claim(T*& place)
    requires(!framed)
{
    return end_.ask([&](auto& end) { return end.claim(place); });
}
template <class T>
base::Status AnyProducer<T>::claim(T*& place, const base::Deadline& deadline)
    requires(!framed)
{
    return end_.ask([&](auto& end) { return end.claim(place, deadline); });
}
template <class T>
base::Status AnyProducer<T>::claim(std::size_t size, std::span<std::byte>& place)
    requires framed
{
    return end_.ask([&](auto& end) { return end.claim(size, place); });
}
template <class T>
base::Status AnyProducer<T>::claim(std::size_t size, std::span<std::byte>& place,
                                   const base::Deadline& deadline)
    requires framed
{
    return end_.ask([&](auto& end) { return end.claim(size, place, deadline); });
}
template <class T>
base::Status AnyProducer<T>::commit() {
    return end_.ask([](auto& end) { return end.commit(); });
}
template <class T>
base::Status AnyProducer<T>::commit(std::size_t size)
    requires framed
{
    return end_.ask([&](auto& end) { return end.commit(size); });
}
template <class T>
std::uint64_t AnyProducer<T>::max_size() const
    requires framed
{
    return end_.ask([](auto& end) { return end.max_size(); });
}
template <class T>
verbs::MemoryRegion AnyProducer<T>::register_memory(std::span<std::byte> memory)
    requires(!framed)
{
    return end_.ask([&](auto& end) -> verbs::MemoryRegion {
        if constexpr (requires { end.register_memory(memory); }) {
            return end.register_memory(memory);
        } else {
            throw base::Error{
                base::ErrorCode::unsupported, "register memory to gather items from",
                ring::to_string(design()),
                "a WRITE of push1 data gathers items that lie apart; with other data flows each "
                "item goes from the producer's ring",
                "choose a design with push1 data, or enqueue the items, which copies them"};
        }
    });
}
template <class T>
BatchResult AnyProducer<T>::try_enqueue_gather(const verbs::MemoryRegion& memory,
                                               std::span<const T* const> items)
    requires(!framed)
{
    return end_.ask([&](auto& end) {
        if constexpr (requires { end.try_enqueue_gather(memory, items); }) {
            return end.try_enqueue_gather(memory, items);
        } else {
            BatchResult result;
            for (const T* const item : items) {
                result.status = end.try_enqueue(*item);
                if (result.status != base::Status::ok) break;
                ++result.count;
            }
            return result;
        }
    });
}
template <class T>
std::uint64_t AnyProducer<T>::released()
    requires(!framed)
{
    return end_.ask([](auto& end) {
        if constexpr (requires { end.released(); }) {
            return end.released();
        } else {
            return end.stats().items;
        }
    });
}
template <class T>
base::Status AnyProducer<T>::flush(const base::Deadline& deadline) {
    return end_.ask([&](auto& end) { return end.flush(deadline); });
}
template <class T>
base::Status AnyProducer<T>::close(const base::Deadline& deadline) {
    return end_.ask([&](auto& end) { return end.close(deadline); });
}
template <class T>
base::Status AnyProducer<T>::look_around() {
    return end_.ask([](auto& end) { return end.look_around(); });
}
template <class T>
int AnyProducer<T>::descriptor() {
    return end_.ask([](auto& end) { return end.descriptor(); });
}
template <class T>
std::uint64_t AnyProducer<T>::capacity() const {
    return end_.ask([](auto& end) { return end.capacity(); });
}
template <class T>
ProducerStats AnyProducer<T>::stats() const {
    return end_.ask([](auto& end) { return end.stats(); });
}
template <class T>
std::string AnyProducer<T>::explain() const {
    return end_.ask([](auto& end) { return end.explain(); });
}
template <class T>
std::string AnyProducer<T>::failure() const {
    return end_.ask([](auto& end) { return end.failure(); });
}

}  // namespace millrace::flow
