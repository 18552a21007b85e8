// One producer, many consumers, each of which owns some keys, and which come and go while it runs:
// the keys of one that leaves go to the others, and one that joins takes its share from each. Work
// 000, section 3.4 (1-N; with several producers M-N).
//
//     auto rows = flow::KeyedFanOut<Row>::connect({{1, "a:7000"}, {2, "b:7000"}}, {}, deadline);
//     if (rows.enqueue(row.key, row, deadline) != Status::ok) …
//     rows.add({3, "c:7000"}, deadline);                            // it takes a third of the keys
//     status = rows.remove(1, deadline);                            // the others have its keys now
//
//     auto mine = flow::KeyedFanIn<Row>::listen("c:7000", 3, {});
//     while (mine.dequeue(row, deadline) == Status::ok) use(row);
//
// A key belongs to the owner with the highest score for it (rendezvous hashing, owner_of): when one
// leaves, nothing moves but its keys; when one joins, nothing moves but what it gets. Owners have
// numbers, which the program gives them, the same in every producer.
//
// Both sides are told. The producer: on_change() names who has joined, left or died. A consumer:
// on_rebalance() says who the owners are from now on, by a notice that travels in the queue,
// between the items:
//
//   to 1   item item item | owners 1 2 3 | item item          after it, nothing comes of keys that
//   to 3                  | owners 1 2 3 | item               are another's; before it, nothing of
//                                                             keys that were another's
//
// Of one producer that holds exactly, for each owner. So an owner that loses a key knows when it
// has all that there will be of it, and can hand on what it made of it; one that gets a key knows
// from whom. Between the queues of two owners there is no order, as ever.
//
// What lies in the ring of an owner that dies is lost, as of a queue; on_change() says `peer_lost`.
//
// With flow::Filtered as item type each consumer may ask for a filter (filter.hpp), by its options'
// queue. It is asked for items, never for notices; one that throws and stops takes its owner out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/filter.hpp"
#include "millrace/flow/filtered_producer.hpp"
#include "millrace/flow/key_hash.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/room_waiter.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

/// Whose `key` is, of `owners` (one or more, all different): the same in every process and release,
/// in whatever order they are.
[[nodiscard]] constexpr std::uint64_t owner_of(std::uint64_t key,
                                               std::span<const std::uint64_t> owners) noexcept {
    std::uint64_t best = 0;
    std::uint64_t best_score = 0;
    bool is_first = true;
    for (const std::uint64_t owner : owners) {
        const std::uint64_t score = detail::mixed(key ^ detail::mixed(owner + 1));
        if (!is_first && (score < best_score || (score == best_score && owner < best))) continue;
        best = owner;
        best_score = score;
        is_first = false;
    }
    return best;
}

/// A consumer that has keys.
struct Owner {
    std::uint64_t number = 0;
    connect::Address address;
};

namespace detail {

/// What travels: an item, or a part of a notice, which is a `member` for each owner and then `end`.
template <class T>
struct Routed {
    enum class Kind : std::uint32_t { item, member, end };
    Kind kind = Kind::item;
    std::uint32_t epoch = 0;   ///< of the notice
    std::uint64_t member = 0;  ///< an owner's number
    T item{};
};

/// What a consumer's filter does to what travels: a notice passes.
template <class F, class T>
struct RoutedFilter {
    using Result = std::remove_cvref_t<std::invoke_result_t<const F&, const T&>>;
    static_assert(!std::is_same_v<Result, std::span<const std::byte>>,
                  "a keyed fan-out has items of one type, and so have its consumers");
    template <class U>
    [[nodiscard]] static Routed<U> with_item(const Routed<T>& part, U item) {
        return {static_cast<typename Routed<U>::Kind>(part.kind), part.epoch, part.member, item};
    }
    auto operator()(const Routed<T>& part) const {
        const bool is_item = part.kind == Routed<T>::Kind::item;
        if constexpr (std::is_same_v<Result, bool>) {
            return !is_item || filter(part.item);
        } else if constexpr (is_optional<Result>) {
            using U = typename Result::value_type;
            if (!is_item) return std::optional{with_item(part, U{})};
            const Result made = filter(part.item);
            return made.has_value() ? std::optional{with_item(part, *made)} : std::nullopt;
        } else {
            return with_item(part, is_item ? filter(part.item) : Result{});
        }
    }
    F filter;
};
template <class F, class T>
struct NamedFilter<RoutedFilter<F, T>> {
    using type = F;
};

/// The item type of the queues.
template <class T>
struct RoutedItems {
    using type = Routed<T>;
};
template <class T, class... Filters>
struct RoutedItems<Filtered<T, Filters...>> {
    using type = Filtered<Routed<T>, RoutedFilter<Filters, T>...>;
};

/// More owners than a notice may name are not believed.
inline constexpr std::size_t most_owners = 4096;

[[noreturn]] void refuse_owner(std::uint64_t number, const char* why, const char* remedy);
[[nodiscard]] std::string explain_owners(std::span<const std::uint64_t> owners,
                                         std::uint32_t epoch);

}  // namespace detail

/// Move-only; one thread at a time. `T`: an item type, or Filtered.
template <class T, ring::Design D = ring::design_2>
class KeyedFanOut {
    using Item = detail::ItemIn<T>;
    using Routed = detail::Routed<Item>;
    using Queue = Producer<typename detail::RoutedItems<T>::type, D>;
    using Kind = typename Routed::Kind;

  public:
    /// `ok`: it has joined; `closed`: it was removed, or has closed; `peer_lost`.
    using Watcher = std::function<void(std::uint64_t owner, base::Status how)>;

    /// Connects to consumers that listen (KeyedFanIn). `options`: of each one's queue. Throws Error
    /// as Producer::connect; invalid_argument: two have one number, or there are more than 4,096.
    [[nodiscard]] static KeyedFanOut connect(std::span<const Owner> owners, Options options,
                                             const base::Deadline& deadline) {
        KeyedFanOut made{std::move(options)};
        for (const Owner& owner : owners) made.join(owner, deadline);
        made.rebalance();
        return made;
    }
    [[nodiscard]] static KeyedFanOut connect(std::initializer_list<Owner> owners, Options options,
                                             const base::Deadline& deadline) {
        return connect(std::span{owners.begin(), owners.size()}, std::move(options), deadline);
    }
    /// One more, which gets its share of the keys from the next item on. Throws Error as connect.
    void add(const Owner& owner, const base::Deadline& deadline) {
        join(owner, deadline);
        rebalance();
        if (watcher_) watcher_(owner.number, base::Status::ok);
    }
    /// Its keys belong to the others from the next item on. Then closes its queue, as
    /// Producer::close: `ok`: it has all that was sent to it. `timed_out`, `cancelled`: to be
    /// called again. `closed`: there is no such owner, or it had closed; `peer_lost`.
    base::Status remove(std::uint64_t number, const base::Deadline& deadline) {
        const auto at = std::ranges::find(ends_, number, &End::number);
        if (at == ends_.end()) return base::Status::closed;
        if (!std::exchange((*at).is_leaving, true)) rebalance();
        base::Status status = tell(*at, &deadline);
        if (status == base::Status::ok) status = at->producer.close(deadline);
        if (status == base::Status::timed_out || status == base::Status::cancelled) return status;
        if (room_.is_used()) room_.forget(at->producer.descriptor());
        ends_.erase(at);
        if (watcher_) {
            watcher_(number, status == base::Status::ok ? base::Status::closed : status);
        }
        return status;
    }

    /// To the owner of `key`; if that is gone, to the one that has its keys now. `full`: it has no
    /// room; `closed`, `peer_lost`: nobody is left.
    base::Status try_enqueue(std::uint64_t key, const Item& item) {
        return send(key, item, nullptr);
    }
    /// The same, waiting for room. Also `timed_out`, `cancelled`.
    base::Status enqueue(std::uint64_t key, const Item& item, const base::Deadline& deadline) {
        return send(key, item, &deadline);
    }
    /// Looks after the owners, by a system call for each, and sends notices that found no room: for
    /// a producer that pauses. Never blocks. How many owners there are.
    std::size_t look_around() {
        for (std::size_t i = 0; i < ends_.size();) {
            const base::Status status = ends_[i].producer.look_around();
            if (is_end(status) && !ends_[i].is_leaving) {
                leave(i, status);
            } else {
                ++i;
            }
        }
        tell_all();
        return owners_.size();
    }
    /// For a program's own loop, as Producer's: readable until try_enqueue() has answered `full`,
    /// and again when that is to be made once more.
    [[nodiscard]] int descriptor() { return room_.descriptor(); }
    /// As Producer's, of all owners: the first answer that is not `ok`, after all were tried.
    base::Status flush(const base::Deadline& deadline) {
        return each(deadline, [&](auto& end) { return end.flush(deadline); });
    }
    base::Status close(const base::Deadline& deadline) {
        is_closing_ = true;
        return each(deadline, [&](auto& end) { return end.close(deadline); });
    }

    /// Called within calls of this end, which it must not use.
    void on_change(Watcher watcher) { watcher_ = std::move(watcher); }
    /// Their numbers, in increasing order.
    [[nodiscard]] std::span<const std::uint64_t> owners() const noexcept { return owners_; }
    /// Which consumers are the owners, and what the queue to one of them is.
    [[nodiscard]] std::string explain() const {
        std::string text = "keyed fan-out: " + detail::explain_owners(owners_, epoch_);
        if (!ends_.empty()) text += "the queue to one: " + ends_.front().producer.explain();
        return text;
    }

  private:
    struct End {
        std::uint64_t number;
        Queue producer;
        std::size_t told = 0;     ///< parts of the last notice that it was sent
        bool is_leaving = false;  ///< it has no keys any more
    };

    explicit KeyedFanOut(Options options) : options_{std::move(options)}, room_{options_.wait} {}

    [[nodiscard]] static bool is_end(base::Status status) noexcept {
        return status == base::Status::closed || status == base::Status::peer_lost;
    }
    void join(const Owner& owner, const base::Deadline& deadline) {
        if (std::ranges::count(ends_, owner.number, &End::number) != 0) {
            detail::refuse_owner(owner.number, "there is one with that number",
                                 "give each consumer a number of its own");
        }
        if (ends_.size() == detail::most_owners) {
            detail::refuse_owner(owner.number, "there are 4096 owners, which are the most",
                                 "let some consumers have more keys");
        }
        ends_.push_back({owner.number, Queue::connect(owner.address, options_, deadline)});
    }
    void leave(std::size_t at, base::Status how) {
        const std::uint64_t number = ends_[at].number;
        why_last_ = how;
        if (room_.is_used()) room_.forget(ends_[at].producer.descriptor());
        ends_.erase(ends_.begin() + static_cast<std::ptrdiff_t>(at));
        rebalance();
        if (watcher_) watcher_(number, how);
    }
    /// From now on, those that are here and do not leave are the owners.
    void rebalance() {
        owners_.clear();
        for (const End& end : ends_) {
            if (!end.is_leaving) owners_.push_back(end.number);
        }
        std::ranges::sort(owners_);
        ++epoch_;
        for (End& end : ends_) end.told = 0;
        tell_all();
    }

    /// Sends what `end` has not been told yet. `deadline`: null, or it waits for room.
    base::Status tell(End& end, const base::Deadline* deadline) {
        for (; end.told <= owners_.size(); ++end.told) {
            Routed part{.kind = Kind::end, .epoch = epoch_};
            if (end.told != owners_.size()) {
                part.kind = Kind::member;
                part.member = owners_[end.told];
            }
            const base::Status status = put(end, part, deadline);
            if (status != base::Status::ok) return status;
        }
        return base::Status::ok;
    }
    /// As far as there is room: what is gone is found out by the next call that sends there.
    void tell_all() {
        has_news_ = false;
        for (End& end : ends_) {
            if (tell(end, nullptr) == base::Status::full) has_news_ = true;
        }
    }
    static base::Status put(End& end, const Routed& part, const base::Deadline* deadline) {
        return deadline == nullptr ? end.producer.try_enqueue(part)
                                   : end.producer.enqueue(part, *deadline);
    }
    base::Status send(std::uint64_t key, const Item& item, const base::Deadline* deadline) {
        if (is_closing_) [[unlikely]]
            return base::Status::closed;
        if (has_news_) [[unlikely]]
            tell_all();
        while (!owners_.empty()) {
            const std::uint64_t number = owner_of(key, owners_);
            const auto at = std::ranges::find(ends_, number, &End::number);
            base::Status status = tell(*at, deadline);
            if (status == base::Status::ok) {
                status = put(*at, {.kind = Kind::item, .epoch = epoch_, .item = item}, deadline);
            }
            if (status == base::Status::full && room_.has_descriptor()) [[unlikely]]
                room_.watch_only(at->producer.descriptor());
            if (!is_end(status)) return status;
            leave(static_cast<std::size_t>(at - ends_.begin()), status);
        }
        return why_last_;
    }
    template <class Call>
    base::Status each(const base::Deadline& deadline, Call&& call) {
        base::Status first = base::Status::ok;
        for (End& end : ends_) {
            base::Status status = tell(end, &deadline);
            if (status == base::Status::ok || is_end(status)) status = call(end.producer);
            if (first == base::Status::ok) first = status;
        }
        return first;
    }

    Options options_;
    detail::RoomWaiter room_;
    std::vector<End> ends_;
    std::vector<std::uint64_t> owners_;  ///< of epoch_
    std::uint32_t epoch_ = 0;            ///< how often they have changed
    bool has_news_ = false;              ///< somebody was not told all of that
    bool is_closing_ = false;
    base::Status why_last_ = base::Status::closed;  ///< why the last one left
    Watcher watcher_{};
};

/// A consumer of KeyedFanOuts, any number of them. Move-only; threads as a FanIn.
template <class T, ring::Design D = ring::design_2>
class KeyedFanIn {
    using Routed = detail::Routed<T>;
    using Kind = typename Routed::Kind;
    using In = FanIn<Routed, D>;

  public:
    /// Which consumers are the owners for that producer, from the next of its items on; in
    /// increasing order.
    using Rebalanced =
        std::function<void(const FanInSource& source, std::span<const std::uint64_t> owners)>;

    /// `number`: as which the producers know it. Throws Error as FanIn::listen.
    [[nodiscard]] static KeyedFanIn listen(const connect::Address& address, std::uint64_t number,
                                           FanInOptions options = {}) {
        return KeyedFanIn{In::listen(address, std::move(options)), number};
    }

    /// As FanIn's calls of these names.
    [[nodiscard]] const connect::Address& address() const noexcept { return in_.address(); }
    base::Status try_dequeue(T& item) {
        const Routed* part = nullptr;
        base::Status status;
        while ((status = in_.peek(part)) == base::Status::ok && !take(*part, item)) {
        }
        return status;
    }
    base::Status dequeue(T& item, const base::Deadline& deadline) {
        const Routed* part = nullptr;
        base::Status status;
        while ((status = in_.peek(part, deadline)) == base::Status::ok && !take(*part, item)) {
        }
        return status;
    }
    /// Called within calls of this end, which it must not use: see above.
    void on_rebalance(Rebalanced watcher) { shared_->rebalanced = std::move(watcher); }
    /// As FanIn's on_change().
    void on_change(typename In::Watcher watcher) { shared_->changed = std::move(watcher); }

    /// As which the producers know it.
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
    /// The rest of what a FanIn has: last(), look_around(), stats(), descriptor(),
    /// adopt(), explain() … Nothing is to be taken there.
    [[nodiscard]] In& fan_in() noexcept { return in_; }
    /// As FanIn's.
    void close() { in_.close(); }

  private:
    struct Owners {
        std::uint32_t epoch = 0;
        std::vector<std::uint64_t> numbers;
    };
    /// What the FanIn's watcher uses, wherever this end is moved.
    struct Shared {
        Rebalanced rebalanced;
        typename In::Watcher changed;
        std::map<std::uint64_t, Owners> of;  ///< by the producer's number
    };

    KeyedFanIn(In in, std::uint64_t number)
        : in_{std::move(in)}, number_{number}, shared_{std::make_unique<Shared>()} {
        in_.on_change([shared = shared_.get()](const FanInSource& source, base::Status how) {
            if (how != base::Status::ok) shared->of.erase(source.number);
            if (shared->changed) shared->changed(source, how);
        });
    }
    /// True: it was an item. Its place is given back.
    bool take(const Routed& part, T& item) {
        const bool is_item = part.kind == Kind::item;
        if (is_item) [[likely]] {
            item = part.item;
        } else {
            note(part);
        }
        in_.release();
        return is_item;
    }
    void note(const Routed& part) {
        Owners& owners = shared_->of[in_.last().number];
        if (owners.epoch != part.epoch) owners = {part.epoch, {}};
        if (part.kind == Kind::member) {
            if (owners.numbers.size() != detail::most_owners) {
                owners.numbers.push_back(part.member);
            }
        } else if (shared_->rebalanced) {
            shared_->rebalanced(in_.last(), owners.numbers);
        }
    }

    In in_;
    std::uint64_t number_;
    std::unique_ptr<Shared> shared_;
};

}  // namespace millrace::flow
