// AnyProducer, see any.hpp.
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
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/flow/with_design.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::flow {

namespace detail {

/// A producer of any design behind virtual calls: those for every item type, and below those for
/// items of one size, and for frames.
template <class T>
class EveryProducer {
  public:
    virtual ~EveryProducer() = default;
    virtual base::Status try_enqueue(Given<T> item) = 0;
    virtual base::Status enqueue(Given<T> item, const base::Deadline&) = 0;
    [[nodiscard]] virtual BatchResult try_enqueue_batch(
        std::span<const std::remove_cvref_t<Given<T>>> items) = 0;
    virtual base::Status flush(const base::Deadline&) = 0;
    virtual base::Status close(const base::Deadline&) = 0;
    [[nodiscard]] virtual int descriptor() = 0;
    [[nodiscard]] virtual std::uint64_t capacity() const = 0;
    [[nodiscard]] virtual ProducerStats stats() = 0;
    [[nodiscard]] virtual std::string explain() const = 0;
};
template <class T>
class AbstractProducer : public EveryProducer<T> {
  public:
    virtual base::Status claim(T*& place) = 0;
    virtual base::Status claim(T*& place, const base::Deadline&) = 0;
    virtual base::Status commit() = 0;
    [[nodiscard]] virtual verbs::MemoryRegion register_memory(std::span<std::byte> memory) = 0;
    [[nodiscard]] virtual BatchResult try_enqueue_gather(const verbs::MemoryRegion& memory,
                                                         std::span<const T* const> items) = 0;
    [[nodiscard]] virtual std::uint64_t released() = 0;
};
template <>
class AbstractProducer<Bytes> : public EveryProducer<Bytes> {
  public:
    [[nodiscard]] virtual std::uint64_t max_size() const = 0;
    virtual base::Status claim(std::size_t size, std::span<std::byte>& place) = 0;
    virtual base::Status claim(std::size_t size, std::span<std::byte>& place,
                               const base::Deadline&) = 0;
    virtual base::Status commit() = 0;
    virtual base::Status commit(std::size_t size) = 0;
};

/// The calls of EveryProducer, passed on.
template <class T, ring::Design D>
class PassingProducer : public AbstractProducer<T> {
  public:
    explicit PassingProducer(Producer<T, D> end) : producer_{std::move(end)} {}
    base::Status try_enqueue(Given<T> item) override { return producer_.try_enqueue(item); }
    base::Status enqueue(Given<T> item, const base::Deadline& deadline) override {
        return producer_.enqueue(item, deadline);
    }
    BatchResult try_enqueue_batch(std::span<const std::remove_cvref_t<Given<T>>> items) override {
        return producer_.try_enqueue_batch(items);
    }
    base::Status flush(const base::Deadline& deadline) override {
        return producer_.flush(deadline);
    }
    base::Status close(const base::Deadline& deadline) override {
        return producer_.close(deadline);
    }
    int descriptor() override { return producer_.descriptor(); }
    std::uint64_t capacity() const override { return producer_.capacity(); }
    ProducerStats stats() override { return producer_.stats(); }
    std::string explain() const override { return producer_.explain(); }

  protected:
    Producer<T, D> producer_;
};

template <class T, ring::Design D>
class ConcreteProducer final : public PassingProducer<T, D> {
  public:
    using PassingProducer<T, D>::PassingProducer;
    base::Status claim(T*& place) override { return this->producer_.claim(place); }
    base::Status claim(T*& place, const base::Deadline& deadline) override {
        return this->producer_.claim(place, deadline);
    }
    base::Status commit() override { return this->producer_.commit(); }
    verbs::MemoryRegion register_memory(std::span<std::byte> memory) override {
        if constexpr (D.data == ring::DataFlow::push1) {
            return this->producer_.register_memory(memory);
        } else {
            throw base::Error{
                base::ErrorCode::unsupported, "register memory to gather items from",
                ring::to_string(D),
                "a WRITE of push1 data gathers items that lie apart; with other data flows each "
                "item goes from the producer's ring",
                "choose a design with push1 data, or enqueue the items, which copies them"};
        }
    }
    BatchResult try_enqueue_gather(const verbs::MemoryRegion& memory,
                                   std::span<const T* const> items) override {
        if constexpr (D.data == ring::DataFlow::push1) {
            return this->producer_.try_enqueue_gather(memory, items);
        } else {
            BatchResult result;
            for (const T* const item : items) {
                result.status = this->producer_.try_enqueue(*item);
                if (result.status != base::Status::ok) break;
                ++result.count;
            }
            return result;
        }
    }
    std::uint64_t released() override {
        if constexpr (D.data == ring::DataFlow::push1) {
            return this->producer_.released();
        } else {
            return this->producer_.stats().items;
        }
    }
};
template <ring::Design D>
class ConcreteProducer<Bytes, D> final : public PassingProducer<Bytes, D> {
  public:
    using PassingProducer<Bytes, D>::PassingProducer;
    std::uint64_t max_size() const override { return this->producer_.max_size(); }
    base::Status claim(std::size_t size, std::span<std::byte>& place) override {
        return this->producer_.claim(size, place);
    }
    base::Status claim(std::size_t size, std::span<std::byte>& place,
                       const base::Deadline& deadline) override {
        return this->producer_.claim(size, place, deadline);
    }
    base::Status commit() override { return this->producer_.commit(); }
    base::Status commit(std::size_t size) override { return this->producer_.commit(size); }
};

}  // namespace detail

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
        Listener listener = Listener::listen(address, std::move(options));
        return accept(design, listener, deadline);
    }
    /// None yet, or the end for the next peer: see Factories::try_accept.
    [[nodiscard]] static std::optional<AnyProducer> try_accept(ring::Design design,
                                                               Listener& listener);
    [[nodiscard]] static AnyProducer accept(ring::Design design, Listener& listener,
                                            const base::Deadline& deadline);

    [[nodiscard]] ring::Design design() const noexcept { return design_; }
    base::Status try_enqueue(detail::Given<T> item) { return end_->try_enqueue(item); }
    base::Status enqueue(detail::Given<T> item, const base::Deadline& deadline) {
        return end_->enqueue(item, deadline);
    }
    [[nodiscard]] BatchResult try_enqueue_batch(std::span<const Item> items) {
        return end_->try_enqueue_batch(items);
    }

    // ---- in place
    base::Status claim(T*& place)
        requires(!framed)
    {
        return end_->claim(place);
    }
    base::Status claim(T*& place, const base::Deadline& deadline)
        requires(!framed)
    {
        return end_->claim(place, deadline);
    }
    base::Status claim(std::size_t size, std::span<std::byte>& place)
        requires framed
    {
        return end_->claim(size, place);
    }
    base::Status claim(std::size_t size, std::span<std::byte>& place,
                       const base::Deadline& deadline)
        requires framed
    {
        return end_->claim(size, place, deadline);
    }
    base::Status commit() { return end_->commit(); }
    base::Status commit(std::size_t size)
        requires framed
    {
        return end_->commit(size);
    }
    [[nodiscard]] std::uint64_t max_size() const
        requires framed
    {
        return end_->max_size();
    }

    // ---- items that lie elsewhere
    /// Throws Error (unsupported) unless the data flow is push1.
    [[nodiscard]] verbs::MemoryRegion register_memory(std::span<std::byte> memory)
        requires(!framed)
    {
        return end_->register_memory(memory);
    }
    /// Where the data flow is not push1, each item is copied.
    [[nodiscard]] BatchResult try_enqueue_gather(const verbs::MemoryRegion& memory,
                                                 std::span<const T* const> items)
        requires(!framed)
    {
        return end_->try_enqueue_gather(memory, items);
    }
    [[nodiscard]] std::uint64_t released()
        requires(!framed)
    {
        return end_->released();
    }

    base::Status flush(const base::Deadline& deadline) { return end_->flush(deadline); }
    base::Status close(const base::Deadline& deadline) { return end_->close(deadline); }
    [[nodiscard]] int descriptor() { return end_->descriptor(); }
    [[nodiscard]] std::uint64_t capacity() const { return end_->capacity(); }
    [[nodiscard]] ProducerStats stats() { return end_->stats(); }
    [[nodiscard]] std::string explain() const { return end_->explain(); }

  private:
    using Abstract = detail::AbstractProducer<T>;
    AnyProducer(ring::Design design, std::unique_ptr<Abstract> end)
        : design_{design}, end_{std::move(end)} {}
    template <class Make>
    static AnyProducer make(ring::Design design, Make&& make_end) {
        return AnyProducer{
            design, detail::with_design(design, [&]<ring::Design D>() -> std::unique_ptr<Abstract> {
                return std::make_unique<detail::ConcreteProducer<T, D>>(
                    make_end.template operator()<D>());
            })};
    }
    ring::Design design_;
    std::unique_ptr<Abstract> end_;
};

// Not inline, so that `extern template class AnyProducer<Item>` compiles the ends of all designs in
// one file only.
template <class T>
AnyProducer<T> AnyProducer<T>::connect(ring::Design design, const connect::Address& address,
                                       Options options, const base::Deadline& deadline) {
    return make(design, [&]<ring::Design D>() {
        return Producer<T, D>::connect_as(design, address, std::move(options), deadline);
    });
}
template <class T>
std::optional<AnyProducer<T>> AnyProducer<T>::try_accept(ring::Design design, Listener& listener) {
    std::optional<AnyProducer> accepted;
    detail::with_design(design, [&]<ring::Design D>() {
        if (auto end = Producer<T, D>::try_accept_as(design, listener)) {
            accepted.emplace(AnyProducer{
                design, std::make_unique<detail::ConcreteProducer<T, D>>(std::move(*end))});
        }
    });
    return accepted;
}
template <class T>
AnyProducer<T> AnyProducer<T>::accept(ring::Design design, Listener& listener,
                                      const base::Deadline& deadline) {
    return make(design, [&]<ring::Design D>() {
        return Producer<T, D>::accept_as(design, listener, deadline);
    });
}

}  // namespace millrace::flow
