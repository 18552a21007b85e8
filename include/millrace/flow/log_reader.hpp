// A reader of a Log (log.hpp): takes its items in their order, from where it likes.
//
//     auto reader = flow::LogReader<Order>::connect("host:7000", {.name = "billing"}, deadline);
//     Order order;
//     while (reader.read(order, deadline) == Status::ok) { …; (void)reader.acknowledge(); }
//
// A reader with a name goes on, when it comes again, where that name has acknowledged. One that
// keeps its position together with what it makes of the items says it (LogStart::position), and
// takes each item exactly once. resume() connects again after the log, or the connection, was lost,
// and goes on with the item after the last one that was taken.
//
// One thread at a time. What try_ operations answer: `ok`; `empty`; `closed` (the log closed and
// everything was taken, or this end closed); `peer_lost`, see failure(); and `full`: what comes
// next is no longer kept, as the log was full of newer items. first_kept() says what is, and skip()
// goes there; without it the answer stays. Waiting operations also `timed_out` and `cancelled`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/log_options.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/flow/stats.hpp"

namespace millrace::flow {

namespace detail {

/// A reader of items of any size.
class LogReaderEnd {
  public:
    /// Items that lie in this end's ring, until they are taken.
    struct Run {
        const std::byte* at = nullptr;
        const std::byte* end = nullptr;
        std::uint64_t position = 0;  ///< of the item at `at`
    };

    LogReaderEnd(const ItemFacts& item, const connect::Address& address, LogReaderOptions options,
                 const base::Deadline& deadline);
    LogReaderEnd(LogReaderEnd&&) noexcept;
    LogReaderEnd& operator=(LogReaderEnd&&) noexcept;
    ~LogReaderEnd();

    [[nodiscard]] Run& run() noexcept { return run_; }
    [[nodiscard]] const Run& run() const noexcept { return run_; }
    /// `ok`: run() has items, of Bytes a record.
    base::Status look();
    base::Status look(const base::Deadline& deadline);
    /// Of Bytes: the item that run() begins with; false: it is none, and this end is lost.
    bool record(std::span<const std::byte>& item) noexcept;
    void pass_record(std::size_t size) noexcept;

    base::Status acknowledge(std::uint64_t position);
    base::Status flush(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);
    void resume(const base::Deadline& deadline);
    base::Status skip() noexcept;
    [[nodiscard]] int descriptor();

    [[nodiscard]] std::uint64_t first_kept() const noexcept;
    [[nodiscard]] LogEpoch epoch() const noexcept;
    [[nodiscard]] const std::string& peer() const noexcept;
    [[nodiscard]] std::string failure() const;
    [[nodiscard]] LogReaderStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;

    struct State;

  private:
    std::unique_ptr<State> state_;
    Run run_;
};

/// What a reader has whatever the items are.
class LogReaderBase {
  public:
    /// Of the next item: how many there were before it. Everything before it was taken.
    [[nodiscard]] std::uint64_t position() const noexcept { return end_.run().position; }
    /// The sequence that positions are of.
    [[nodiscard]] LogEpoch epoch() const noexcept { return end_.epoch(); }

    /// Everything before `position` is done, and need not come again to this name. `ok`: it is on
    /// its way, or goes with the next call of this end; `closed`, `peer_lost`. A smaller one than
    /// before changes nothing. Throws Error (invalid_argument): this end has not come so far, or
    /// has no name.
    base::Status acknowledge(std::uint64_t position) { return end_.acknowledge(position); }
    /// Everything that was taken.
    base::Status acknowledge() { return acknowledge(position()); }
    /// Until what was acknowledged lies in the log's memory: it has it then, be this process
    /// killed.
    base::Status flush(const base::Deadline& deadline) { return end_.flush(deadline); }

    /// After `full`: the first position that was kept when retention passed this end. What has gone
    /// since skip() goes past, too.
    [[nodiscard]] std::uint64_t first_kept() const noexcept { return end_.first_kept(); }
    /// After `full`: goes on with what is kept; stats() counts what is lost to this reader. `ok`;
    /// `empty`: there is nothing to skip; `peer_lost`, `closed`.
    base::Status skip() noexcept { return end_.skip(); }
    /// After `peer_lost`: connects again and goes on at position(), with the same log or with one
    /// that goes on with its files. What was acknowledged is said again. Throws Error as connect();
    /// refused: it is another sequence, or lacks items that were taken here.
    void resume(const base::Deadline& deadline) { end_.resume(deadline); }
    /// Takes no more. Waits until what was acknowledged lies in the log's memory, as a Producer's
    /// close() (docs/closing.md).
    base::Status close(const base::Deadline& deadline) { return end_.close(deadline); }

    /// For a program's own loop: readable means that a try_ call may find an item, or the end. As
    /// Consumer's; after resume() it is another one. Not for EPOLLET. docs/loops.md.
    [[nodiscard]] int descriptor() { return end_.descriptor(); }
    [[nodiscard]] const std::string& peer() const noexcept { return end_.peer(); }
    /// Why the log is lost. Else empty.
    [[nodiscard]] std::string failure() const { return end_.failure(); }
    [[nodiscard]] LogReaderStats stats() const noexcept { return end_.stats(); }
    [[nodiscard]] std::string explain() const { return end_.explain(); }

  protected:
    LogReaderBase(const ItemFacts& item, const connect::Address& address, LogReaderOptions options,
                  const base::Deadline& deadline)
        : end_{item, address, std::move(options), deadline} {}
    LogReaderEnd end_;
};

}  // namespace detail

/// Of items of one type. Move-only.
template <class T>
class LogReader : public detail::LogReaderBase {
  public:
    /// Connects, and waits until the log has answered, which it does within its owner's calls.
    /// Throws Error as Consumer::connect; refused: another item type; a position that the log never
    /// had, or no longer has of that epoch.
    [[nodiscard]] static LogReader connect(const connect::Address& address,
                                           LogReaderOptions options,
                                           const base::Deadline& deadline) {
        return LogReader{address, std::move(options), deadline};
    }

    base::Status try_read(T& item) {
        auto& run = end_.run();
        if (run.at == run.end) [[unlikely]] {
            const base::Status status = end_.look();
            if (status != base::Status::ok) return status;
        }
        take(run, &item, 1);
        return base::Status::ok;
    }
    base::Status read(T& item, const base::Deadline& deadline) {
        auto& run = end_.run();
        if (run.at == run.end) [[unlikely]] {
            const base::Status status = end_.look(deadline);
            if (status != base::Status::ok) return status;
        }
        take(run, &item, 1);
        return base::Status::ok;
    }
    /// As many items as are there, at most `items.size()`.
    [[nodiscard]] BatchResult try_read_batch(std::span<T> items) {
        BatchResult result;
        auto& run = end_.run();
        while (result.count != items.size()) {
            if (run.at == run.end) {
                result.status = end_.look();
                if (result.status != base::Status::ok) break;
            }
            const std::size_t there = static_cast<std::size_t>(run.end - run.at) / sizeof(T);
            const std::size_t taken = std::min(items.size() - result.count, there);
            take(run, items.data() + result.count, taken);
            result.count += taken;
        }
        return result;
    }

  private:
    LogReader(const connect::Address& address, LogReaderOptions options,
              const base::Deadline& deadline)
        : LogReaderBase{detail::item_facts<T>(), address, std::move(options), deadline} {}
    static void take(detail::LogReaderEnd::Run& run, T* into, std::size_t count) noexcept {
        std::memcpy(into, run.at, count * sizeof(T));
        run.at += count * sizeof(T);
        run.position += count;
    }
};

/// Of items of any number of bytes.
template <>
class LogReader<Bytes> : public detail::LogReaderBase {
  public:
    [[nodiscard]] static LogReader connect(const connect::Address& address,
                                           LogReaderOptions options,
                                           const base::Deadline& deadline) {
        return LogReader{address, std::move(options), deadline};
    }
    /// Makes `into` a copy of the next item. Allocates where its capacity does not suffice.
    base::Status try_read(std::vector<std::byte>& into) {
        return take(into, [&] { return end_.look(); });
    }
    base::Status read(std::vector<std::byte>& into, const base::Deadline& deadline) {
        return take(into, [&] { return end_.look(deadline); });
    }

  private:
    LogReader(const connect::Address& address, LogReaderOptions options,
              const base::Deadline& deadline)
        : LogReaderBase{detail::item_facts<Bytes>(), address, std::move(options), deadline} {}
    template <class Look>
    base::Status take(std::vector<std::byte>& into, const Look& look) {
        if (end_.run().at == end_.run().end) {
            const base::Status status = look();
            if (status != base::Status::ok) return status;
        }
        std::span<const std::byte> item;
        if (!end_.record(item)) return base::Status::peer_lost;
        into.assign(item.begin(), item.end());
        end_.pass_record(item.size());
        return base::Status::ok;
    }
};

}  // namespace millrace::flow
