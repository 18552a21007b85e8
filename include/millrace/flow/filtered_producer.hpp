// The producing half of a flow queue whose consumer may ask for a filter: see filter.hpp. It has a
// Producer's calls, but for gathering; an item that the filter leaves out is answered as one that
// was laid, `ok`, at once, also where there is no room.
//
//     using Rows = flow::Filtered<Row, Above, KeyOf>;
//     auto source = flow::Producer<Rows>::connect(address, {}, deadline);
//     if (source.enqueue(row, deadline) != Status::ok) …
//
// A filter that throws is told to the consumer, and logged. By WhenThrown::stop the queue is over:
// this end answers `peer_lost`, and failure() says what was thrown; what was laid before arrives,
// if flush() or close() is called. An ordinary Producer's path knows nothing of all this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/filter.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

namespace detail {

/// Of the line in the log, and of failure().
[[nodiscard]] std::string sentence_of_thrown(std::string_view filter, std::uint64_t item,
                                             std::string_view reason);
void note_thrown(const std::string& peer, const std::string& sentence) noexcept;
[[nodiscard]] std::string explain_filter(std::string_view filter, std::size_t of, bool stops,
                                         const FilterCounts& counts);

}  // namespace detail

/// Items of T, or Bytes. What travels is what the filter makes of them.
template <class T, class... Filters, ring::Design D>
class Producer<Filtered<T, Filters...>, D>
    : private detail::ChosenFilter,
      public detail::ProducerEnd<D>,
      public detail::Factories<Producer<Filtered<T, Filters...>, D>, D, T> {
    static_assert(PlainItem<T> || std::is_same_v<T, Bytes>,
                  "an item must be trivially copyable, aligned to at most 4096, and no address: "
                  "that means nothing in another process");
    using Base = detail::ProducerEnd<D>;
    template <class F>
    using Made = detail::Made<F, T>;
    static_assert(((PlainItem<Made<Filters>> || std::is_same_v<Made<Filters>, Bytes>)&&...),
                  "what a filter makes must be an item");

  public:
    using Item = detail::FilterArgument<T>;

    base::Status try_enqueue(Item item) noexcept {
        bool is_laid;
        return try_enqueue(item, is_laid);
    }
    /// Says whether an item that was answered by `ok` has been laid: else it was left out.
    base::Status try_enqueue(Item item, bool& is_laid) noexcept {
        const auto& calls = calls_of[index()];
        base::Status status = calls.prepare(*this, item);
        if (status == base::Status::ok) status = calls.settle(*this);
        is_laid = verdict_ == Verdict::laid;
        return status;
    }
    base::Status enqueue(Item item, const base::Deadline& deadline) {
        return this->wait_for_space([&] { return try_enqueue(item); }, deadline);
    }
    base::Status enqueue(Item item, bool& is_laid, const base::Deadline& deadline) {
        return this->wait_for_space([&] { return try_enqueue(item, is_laid); }, deadline);
    }
    /// Items from the front of `items`, as many as fit, or are left out; sent together.
    [[nodiscard]] BatchResult try_enqueue_batch(
        std::span<const std::remove_cvref_t<Item>> items) noexcept {
        return calls_of[index()].batch(*this, items);
    }

    /// In two steps: asks the filter, and keeps what it makes at its place in the ring. `ok`:
    /// settle() lays or leaves out that item. It is forgotten with the next call but settle.
    base::Status prepare(Item item) noexcept { return calls_of[index()].prepare(*this, item); }
    base::Status settle() noexcept { return calls_of[index()].settle(*this); }
    /// Until there is room for what prepare() found none for last.
    base::Status wait_for_room(const base::Deadline& deadline) {
        return this->wait_for_space([this] { return this->sender_->reserve(awaited_bytes_); },
                                    deadline);
    }

    base::Status close(const base::Deadline& deadline) {
        if (this->sender_->terms().is_filtered) {
            this->sender_->add_to_goodbye(this->filter_.looked, this->filter_.threw);
        }
        return Base::close(deadline);
    }
    [[nodiscard]] std::string failure() const {
        return thrown_.empty() ? Base::failure() : thrown_;
    }
    /// Both ask for the same filter with the same parameters.
    [[nodiscard]] bool is_asked_as(const Producer& other) const noexcept { return is_as(other); }
    [[nodiscard]] std::string explain() const {
        return Base::explain() +
               detail::explain_filter(name(), sizeof...(Filters), stops(), this->filter_);
    }

  private:
    friend detail::Factories<Producer, D, T>;
    Producer(detail::Connection connection, ring::Design design, Options options,
             const base::Deadline& deadline)
        : Base{std::move(connection), design, std::move(options),
               offered(detail::item_facts<T>(), {detail::filter_facts<Filters, T>()...}),
               deadline} {
        this->item_size_ = calls_of[index()].made_size;
        if (this->sender_->terms().framed()) this->gather_frames();
    }

    enum class Verdict : std::uint8_t { none, laid, left_out, thrown };
    static constexpr std::uint64_t left_out_per_look = 4096;

    template <class M>
    static constexpr bool is_framed = std::is_same_v<M, Bytes>;
    template <class M>
    static constexpr std::uint64_t slot_of() {
        return ring::slot_bytes_of(sizeof(M), alignof(M), ring::has_marks(D));
    }
    static std::uint64_t bytes_of([[maybe_unused]] Item item) noexcept {
        if constexpr (is_framed<T>) {
            return item.size();
        } else {
            return sizeof(T);
        }
    }

    /// The filter's answer. Puts what it makes by `put`.
    template <class F, class Put>
    Verdict ask(Item item, const Put& put) noexcept {
        if constexpr (std::is_void_v<F>) {
            put(item);
            return Verdict::laid;
        } else {
            try {
                return detail::put_made<F, T>(object<F>(), item, put) ? Verdict::laid
                                                                      : Verdict::left_out;
            } catch (const std::exception& thrown) {
                remember(thrown.what());
            } catch (...) {
                remember("something that is no std::exception");
            }
            return Verdict::thrown;
        }
    }
    /// Asks the filter. `ok`: by verdict_, what it made lies at its place in the ring.
    template <class F>
    static base::Status prepare_by(Producer& self, Item item) noexcept {
        using M = Made<F>;
        auto& sender = *self.sender_;
        self.verdict_ = Verdict::none;
        if (self.is_stopped_) [[unlikely]]
            return base::Status::peer_lost;
        base::Status status;
        Verdict verdict;
        if constexpr (is_framed<M>) {
            std::span<const std::byte> made;
            verdict = self.template ask<F>(
                item, [&](std::span<const std::byte> part) noexcept { made = part; });
            if (made.size() > sender.terms().max_frame()) [[unlikely]]
                return base::Status::too_large;
            self.awaited_bytes_ = self.frame_bytes(made.size());
            status = sender.reserve(self.awaited_bytes_);
            if (status == base::Status::ok && verdict == Verdict::laid) {
                if (!made.empty()) {
                    std::memcpy(sender.at() + ring::mark_bytes, made.data(), made.size());
                }
                self.length_ = static_cast<std::uint32_t>(made.size());
            }
        } else {
            self.awaited_bytes_ = slot_of<M>();
            status = sender.reserve(slot_of<M>());
            if (status != base::Status::ok && status != base::Status::full) return status;
            // Where there is no room, only whether the item needs any.
            std::byte* const at = status == base::Status::ok ? sender.at() : nullptr;
            verdict = self.template ask<F>(item, [at](const M& made) noexcept {
                if (at != nullptr) std::memcpy(at, &made, sizeof made);
            });
        }
        if (status == base::Status::full && verdict != Verdict::laid) status = base::Status::ok;
        if (status != base::Status::ok) return status;
        self.verdict_ = verdict;
        self.prepared_bytes_ = bytes_of(item);
        // Before anybody else may get the item.
        if (verdict == Verdict::thrown && self.stops()) [[unlikely]]
            return self.leave_out();
        return status;
    }
    /// What prepare_by has answered `ok` to.
    template <class F>
    static base::Status settle_by(Producer& self) noexcept {
        if (self.verdict_ == Verdict::laid) [[likely]] {
            self.template lay<F>();
            return self.template send<Made<F>>();
        }
        return self.leave_out();
    }
    template <class F>
    static BatchResult batch_by(Producer& self,
                                std::span<const std::remove_cvref_t<Item>> items) noexcept {
        BatchResult result;
        bool is_any_laid = false;
        for (const auto& item : items) {
            result.status = prepare_by<F>(self, item);
            if (result.status != base::Status::ok) break;
            if (self.verdict_ == Verdict::laid) {
                self.template lay<F>();
                is_any_laid = true;
            } else {
                result.status = self.leave_out();
                if (result.status != base::Status::ok) break;
            }
            ++result.count;
        }
        if (is_any_laid) {
            const base::Status status = self.template send<Made<F>>();
            if (status != base::Status::ok) result.status = status;
        }
        return result;
    }

    template <class F>
    void lay() noexcept {
        using M = Made<F>;
        [[maybe_unused]] std::uint64_t laid = 0;
        if constexpr (is_framed<M>) {
            laid = length_;
            this->lay_frame(length_);
        } else {
            auto& sender = *this->sender_;
            laid = sizeof(M);
            constexpr std::uint64_t slot = slot_of<M>();
            if constexpr (ring::has_marks(D)) {
                sender.lay_mark(sender.at() + slot - ring::mark_bytes,
                                ring::slot_mark(sender.position(), sender.terms().initial));
            }
            sender.append(slot);
            this->count();
        }
        if constexpr (!std::is_void_v<F>) {
            ++this->filter_.looked;
            ++this->filter_.passed;
            if (prepared_bytes_ > laid) this->filter_.bytes_kept += prepared_bytes_ - laid;
        }
    }
    template <class M>
    base::Status send() noexcept {
        if constexpr (is_framed<M>) {
            return this->send_frames();
        } else {
            return this->sender_->send();
        }
    }

    /// Nothing of it travels.
    base::Status leave_out() noexcept {
        FilterCounts& counts = this->filter_;
        if (verdict_ == Verdict::none) [[unlikely]]
            return base::Status::empty;
        ++counts.looked;
        counts.bytes_kept += prepared_bytes_;
        if (verdict_ == Verdict::thrown) [[unlikely]]
            return tell_thrown();
        if (++left_out_ % left_out_per_look != 0) [[likely]]
            return base::Status::ok;
        // A producer that lays nothing never runs out of room, and would not hear of the consumer's
        // end.
        this->show();
        const base::Status status = this->sender_->look_around();
        return status == base::Status::full ? base::Status::ok : status;
    }
    [[gnu::cold]] void remember(std::string_view reason) noexcept {
        news_ = ring::FilterNews::of(0, 0, stops(), reason);
    }
    [[gnu::cold]] base::Status tell_thrown() noexcept {
        FilterCounts& counts = this->filter_;
        is_stopped_ = stops();
        if (++counts.threw == 1) {
            news_.position = this->sender_->position();
            news_.looked = counts.looked - 1;
            this->sender_->tell(news_);
            try {
                const std::string sentence =
                    detail::sentence_of_thrown(name(), counts.looked, {news_.reason, news_.length});
                detail::note_thrown(this->peer(), sentence);
                if (is_stopped_) thrown_ = sentence;
            } catch (const std::exception&) {  // out of memory
            }
        }
        return is_stopped_ ? base::Status::peer_lost : base::Status::ok;
    }

    /// What is compiled for each filter; the first is for none.
    struct Calls {
        base::Status (*prepare)(Producer&, Item) noexcept;
        base::Status (*settle)(Producer&) noexcept;
        BatchResult (*batch)(Producer&, std::span<const std::remove_cvref_t<Item>>) noexcept;
        std::size_t made_size;  ///< 0: frames
    };
    template <class F>
    static constexpr Calls calls() {
        if constexpr (is_framed<Made<F>>) {
            return {&prepare_by<F>, &settle_by<F>, &batch_by<F>, 0};
        } else {
            return {&prepare_by<F>, &settle_by<F>, &batch_by<F>, sizeof(Made<F>)};
        }
    }
    static constexpr std::array<Calls, 1 + sizeof...(Filters)> calls_of{calls<void>(),
                                                                        calls<Filters>()...};

    Verdict verdict_ = Verdict::none;   ///< of what was prepared
    std::uint32_t length_ = 0;          ///< of its frame
    std::uint64_t prepared_bytes_ = 0;  ///< of the item
    std::uint64_t awaited_bytes_ = 0;   ///< of ring
    std::uint64_t left_out_ = 0;
    bool is_stopped_ = false;  ///< the filter threw, and nothing follows
    ring::FilterNews news_{};
    std::string thrown_;
};

}  // namespace millrace::flow
