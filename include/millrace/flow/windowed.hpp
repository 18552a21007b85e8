// A producer that sends what the values of a window come to, by key: each host's load of every ten
// seconds, each article's last hundred prices. Windows follow each other (tumbling) or overlap
// (sliding); they are counted in values of a key, or in time.
//
//     using Load = flow::Windowed<std::uint32_t, flow::Summary<double>>;
//     auto queue = flow::Producer<Load>::connect("host:7000", {}, deadline);
//     flow::WindowedProducer loads{std::move(queue), flow::Window::sliding(60s, 10s), {}};
//     if (loads.try_enqueue(host, 0.7) != Status::ok) …
//
// A window is made of panes, as long as the windows' beginnings lie apart; of each key as many
// panes are kept as a window has. A value goes into the pane of now, and a window that ends joins
// its panes:
//
//   panes of a key    … | 3 | 4 | 5 | 6 |           sliding(3 panes, 1 pane)
//   windows                 [3  4  5)
//                               [4  5  6)           one value is in 3 windows
//
// By time, all windows begin at multiples of their distance, counted from the epoch of the clock
// (WindowOptions::clock), in every process alike; a value belongs to the time at which it is
// enqueued. Of each key that has a value in it, a window that has ended is sent, once, the keys in
// the order in which they came. By number, a key's first window is its first values, and its
// windows are sent with the value that fills them.
//
// Nothing is dropped, or joined that does not belong together: while the result of a window that
// has ended finds no room, values are not taken (`full`).
//
// At the bound a key that is not there yet makes the oldest one leave: what it has of the windows
// that have not ended is sent as a part of each. So does close() with all keys. Parts of one window
// have its `begin` and key, and join; by number, a window that was cut short has fewer `items`.
//
// A producer moves only within its calls: one that pauses calls try_send(), and due_in() says when.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/aggregating.hpp"
#include "millrace/flow/folds.hpp"
#include "millrace/flow/keyed.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/time_source.hpp"

namespace millrace::flow {

/// What travels: what the values of a key in a window come to, or a part of them.
template <class Key, Aggregate A>
struct Windowed {
    Key key{};
    A value{};
    /// The window, without its end: by time, nanoseconds of the producer's clock; else numbers of
    /// the key's values, from 0.
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::uint64_t items = 0;  ///< values
};

/// How long windows are, and how far apart they begin.
class Window {
  public:
    /// One after the other, each so long.
    [[nodiscard]] static constexpr Window tumbling(std::chrono::nanoseconds length) noexcept {
        return {length.count(), length.count(), true};
    }
    /// Each so long, one beginning in each `distance`, of which `length` is a multiple.
    [[nodiscard]] static constexpr Window sliding(std::chrono::nanoseconds length,
                                                  std::chrono::nanoseconds distance) noexcept {
        return {length.count(), distance.count(), true};
    }
    /// As tumbling, and each is so many values of its key.
    [[nodiscard]] static constexpr Window tumbling_items(std::uint32_t length) noexcept {
        return {length, length, false};
    }
    /// As sliding, in values of its key.
    [[nodiscard]] static constexpr Window sliding_items(std::uint32_t length,
                                                        std::uint32_t distance) noexcept {
        return {length, distance, false};
    }

    [[nodiscard]] constexpr std::int64_t length() const noexcept { return length_; }
    [[nodiscard]] constexpr std::int64_t distance() const noexcept { return distance_; }
    [[nodiscard]] constexpr bool is_by_time() const noexcept { return is_by_time_; }
    /// Panes of one window.
    [[nodiscard]] constexpr std::int64_t panes() const noexcept { return length_ / distance_; }

  private:
    constexpr Window(std::int64_t length, std::int64_t distance, bool is_by_time) noexcept
        : length_{length}, distance_{distance}, is_by_time_{is_by_time} {}
    std::int64_t length_;
    std::int64_t distance_;
    bool is_by_time_;
};

struct WindowOptions {
    /// Keys at a time, 1 to 4,194,304. Their memory is taken at once: for each the panes of a
    /// window, and 56 bytes.
    std::uint32_t keys = 1024;
    TimeSource clock{};
};

namespace detail {

/// Throws Error (invalid_argument): the keys, a window that is none, or more than 1,024 panes.
void check(const Window& window, const WindowOptions& options);
[[nodiscard]] std::string explain_windows(const Window& window);

/// The last panes of many keys, as many of each as a window has.
template <Aggregate A>
class Panes {
  public:
    struct Joined {
        A value{};
        std::uint64_t items = 0;
    };

    Panes(std::uint32_t keys, std::int64_t of_each)
        : of_each_{of_each}, panes_(keys * static_cast<std::size_t>(of_each)) {}

    /// Those of a key that was not there are of the one that had its place.
    void begin(std::uint32_t key) noexcept {
        for (std::int64_t i = 0; i != of_each_; ++i) at(key, i).number = nothing;
    }
    template <class V>
    void add(std::uint32_t key, std::int64_t number, const V& value) {
        Pane& pane = at(key, number);
        if (pane.number != number) pane = {.number = number};
        pane.joined.value.add(value);
        ++pane.joined.items;
    }
    /// What the panes of a window come to that ends before `end`, the oldest first.
    [[nodiscard]] Joined join(std::uint32_t key, std::int64_t end) {
        Joined all;
        for (std::int64_t number = end - of_each_; number != end; ++number) {
            const Pane& pane = at(key, number);
            if (pane.number != number) continue;
            all.value.join(pane.joined.value);
            all.items += pane.joined.items;
        }
        return all;
    }

  private:
    static constexpr std::int64_t nothing = std::numeric_limits<std::int64_t>::min();
    struct Pane {
        Joined joined{};
        std::int64_t number = nothing;
    };
    [[nodiscard]] Pane& at(std::uint32_t key, std::int64_t number) noexcept {
        // The remainder of a negative number is negative: of windows that began before it.
        const std::int64_t place = (number % of_each_ + of_each_) % of_each_;
        return panes_[key * static_cast<std::size_t>(of_each_) + static_cast<std::size_t>(place)];
    }

    std::int64_t of_each_;
    std::vector<Pane> panes_;
};

}  // namespace detail

/// `End`: a Producer, AnyProducer, Replicator or FanOut of Windowed. Move-only; one thread at a
/// time.
template <class End>
class WindowedProducer {
  public:
    using Item = typename detail::ItemOf<End>::type;
    using Key = decltype(Item::key);
    using Value = decltype(Item::value);

    /// Throws Error (invalid_argument).
    WindowedProducer(End end, Window window, WindowOptions options)
        : end_{std::move(end)},
          window_{window},
          options_{checked(window, std::move(options))},
          table_{options_.keys, detail::KeyOfResult{}},
          panes_{options_.keys, window.panes()} {
        if (window_.is_by_time()) enter(pane_of(now()));
    }

    /// Adds `value`, which is what Value::add takes, to the windows of `key`. `full`: a result
    /// waits for room, and the value was not taken; `closed`, `peer_lost`.
    template <class V>
    base::Status try_enqueue(const Key& key, const V& value) {
        return take(key, value, nullptr);
    }
    /// The same, waiting for room. Also `timed_out`, `cancelled`.
    template <class V>
    base::Status enqueue(const Key& key, const V& value, const base::Deadline& deadline) {
        return take(key, value, &deadline);
    }
    /// Sends the windows that have ended, as far as there is room. `ok`: all have gone; `full`;
    /// `closed`, `peer_lost`.
    base::Status try_send() { return settle(nullptr); }
    /// Until those that have ended are in the consumer's ring. The others go on. As Producer's.
    base::Status flush(const base::Deadline& deadline) {
        const base::Status status = settle(&deadline);
        return status == base::Status::ok ? end_.flush(deadline) : status;
    }
    /// Takes nothing new, sends what there is of every window, and says goodbye, as
    /// docs/closing.md says.
    base::Status close(const base::Deadline& deadline) {
        is_closing_ = true;
        base::Status status = settle(&deadline);
        while (status == base::Status::ok && !table_.is_empty()) {
            status = leave(table_.front(), &deadline);
        }
        return status == base::Status::ok ? end_.close(deadline) : status;
    }
    /// How long until a window ends by the clock, in which there is something; 0: one has. max():
    /// none will.
    [[nodiscard]] std::chrono::nanoseconds due_in() const {
        using std::chrono::nanoseconds;
        if (leaving_ != Table::none || is_ending_) return nanoseconds::zero();
        if (!window_.is_by_time() || table_.is_empty()) return nanoseconds::max();
        return std::max(nanoseconds::zero(), nanoseconds{pane_ends_at_ - now()});
    }

    /// What was passed in: its descriptor(), stats(), look_around(). Nothing is to be enqueued
    /// there.
    [[nodiscard]] End& producer() noexcept { return end_; }
    [[nodiscard]] KeyedStats stats() const noexcept {
        KeyedStats stats = counts_;
        stats.waiting = table_.size();
        return stats;
    }
    /// What it does, and then what the queue is.
    [[nodiscard]] std::string explain() const {
        return detail::explain_keyed(detail::explain_windows(window_), options_.keys, stats()) +
               detail::explain_end(end_);
    }

  private:
    struct Entry {
        Key key{};
        std::int64_t newest = 0;  ///< the pane of its last value
        std::int64_t values = 0;
        std::int64_t told = 0;  ///< by number: of these, in windows that were sent
    };
    using Table = detail::KeyTable<Entry, detail::KeyOfResult>;
    using Joined = typename detail::Panes<Value>::Joined;

    static WindowOptions checked(const Window& window, WindowOptions options) {
        detail::check(window, options);
        return options;
    }
    [[nodiscard]] std::int64_t now() const { return detail::time_by(options_.clock).count(); }
    [[nodiscard]] std::int64_t pane_of(std::int64_t time) const noexcept {
        const std::int64_t pane = time / window_.distance();
        return time % window_.distance() < 0 ? pane - 1 : pane;
    }
    void enter(std::int64_t pane) noexcept {
        pane_ = pane;
        pane_ends_at_ = (pane + 1) * window_.distance();
    }

    template <class V>
    base::Status take(const Key& key, const V& value, const base::Deadline* deadline) {
        if (is_closing_) [[unlikely]]
            return base::Status::closed;
        base::Status status = settle(deadline);
        if (status != base::Status::ok) return status;
        const std::uint64_t hash = Table::hash_of(key);
        std::uint32_t at = table_.find(key, hash);
        const bool is_new = at == Table::none;
        if (is_new) {
            if (table_.is_full()) {
                ++counts_.crowded;
                status = leave(table_.front(), deadline);
                if (status != base::Status::ok) return status;
            }
            at = table_.add(Entry{.key = key}, hash);
            panes_.begin(at);
        }
        Entry& entry = table_[at];
        entry.newest = window_.is_by_time() ? pane_ : entry.values / window_.distance();
        if (fills_window(entry)) {
            // First there must be room: a value whose result finds none is not taken.
            status = send_filled(at, value, deadline);
            if (status != base::Status::ok) {
                if (is_new) table_.remove(at);
                return status;
            }
            entry.told = entry.values + 1;
        }
        panes_.add(at, entry.newest, value);
        ++entry.values;
        ++counts_.taken;
        if (!is_new) ++counts_.folded;
        return base::Status::ok;
    }
    /// By number: the next value does.
    [[nodiscard]] bool fills_window(const Entry& entry) const noexcept {
        const std::int64_t values = entry.values + 1;
        return !window_.is_by_time() && values % window_.distance() == 0 &&
               values >= window_.length();
    }

    /// What is under way is done, and what has ended is sent. `deadline`: null, or it waits for
    /// room.
    base::Status settle(const base::Deadline* deadline) {
        if (leaving_ != Table::none) [[unlikely]] {
            const base::Status status = leave(leaving_, deadline);
            if (status != base::Status::ok) return status;
        }
        if (!window_.is_by_time()) return base::Status::ok;
        const std::int64_t time = now();
        if (time < pane_ends_at_) [[likely]]
            return base::Status::ok;
        return end_panes(pane_of(time), deadline);
    }
    /// Sends the windows that end before the pane `current`.
    base::Status end_panes(std::int64_t current, const base::Deadline* deadline) {
        while (pane_ < current) {
            if (table_.is_empty()) {
                enter(current);
                break;
            }
            if (!std::exchange(is_ending_, true)) reached_ = table_.front();
            const std::int64_t end = pane_ + 1;
            while (reached_ != Table::none) {
                const std::uint32_t at = reached_;
                const base::Status status = send(at, end, deadline);
                if (status != base::Status::ok) return status;
                reached_ = table_.after(at);
                if (table_[at].newest + window_.panes() <= end) table_.remove(at);
            }
            is_ending_ = false;
            enter(end);
        }
        return base::Status::ok;
    }
    /// Sends what `at` has of windows that have not ended, and forgets it.
    base::Status leave(std::uint32_t at, const base::Deadline* deadline) {
        const Entry& entry = table_[at];
        if (leaving_ != at) {
            leaving_ = at;
            leaving_end_ = (window_.is_by_time() ? pane_ : entry.newest) + 1;
        }
        const std::int64_t last = window_.is_by_time()
                                      ? entry.newest + window_.panes()
                                      : entry.newest + (entry.values > entry.told ? 1 : 0);
        for (; leaving_end_ <= last; ++leaving_end_) {
            const base::Status status = send(at, leaving_end_, deadline);
            if (status != base::Status::ok) return status;
        }
        leaving_ = Table::none;
        table_.remove(at);
        return base::Status::ok;
    }

    /// What there is of the window that ends before the pane `end`.
    base::Status send(std::uint32_t at, std::int64_t end, const base::Deadline* deadline) {
        const Joined joined = panes_.join(at, end);
        return joined.items == 0 ? base::Status::ok : send(at, end, joined, deadline);
    }
    /// By number: the window that `value` fills.
    template <class V>
    base::Status send_filled(std::uint32_t at, const V& value, const base::Deadline* deadline) {
        const std::int64_t end = table_[at].newest + 1;
        Joined joined = panes_.join(at, end);
        Value last;
        last.add(value);
        joined.value.join(last);
        ++joined.items;
        return send(at, end, joined, deadline);
    }
    base::Status send(std::uint32_t at, std::int64_t end, const Joined& joined,
                      const base::Deadline* deadline) {
        const Entry& entry = table_[at];
        Item item{.key = entry.key,
                  .value = joined.value,
                  .begin = (end - window_.panes()) * window_.distance(),
                  .end = end * window_.distance(),
                  .items = joined.items};
        if (!window_.is_by_time()) item.begin = std::max<std::int64_t>(item.begin, 0);
        const base::Status status = detail::put(end_, table_.hash_at(at), item, deadline);
        if (status == base::Status::ok) ++counts_.sent;
        return status;
    }

    End end_;
    Window window_;
    WindowOptions options_;
    Table table_;
    detail::Panes<Value> panes_;
    KeyedStats counts_{};
    std::int64_t pane_ = 0;  ///< by time: that of now, or, while results wait, of then
    std::int64_t pane_ends_at_ = 0;
    bool is_ending_ = false;               ///< keys from `reached_` on have that to be told yet
    std::uint32_t reached_ = Table::none;  ///< of those whose window ends
    std::uint32_t leaving_ = Table::none;  ///< is on its way out
    std::int64_t leaving_end_ = 0;         ///< … the next of its windows
    bool is_closing_ = false;
};

}  // namespace millrace::flow
