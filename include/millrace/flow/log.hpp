// A sequence with positions: one process appends, any number of readers take all of it, each from
// where it likes and as fast as it can. Work 000 has queues that forget an item once it is taken
// (chapter 5), and leaves other kinds of flows open (chapter 8).
//
//     auto orders = flow::Log<Order>::listen(":7000", {.directory = "/var/lib/orders"});
//     if (orders.append(order, deadline) != Status::ok) …
//     if (orders.wait_acknowledged(orders.end(), 2, deadline) != Status::ok) …   // two have it
//
//     auto reader = flow::LogReader<Order>::connect("host:7000", {.name = "billing"}, deadline);
//     while (reader.read(order, deadline) == Status::ok) { …; (void)reader.acknowledge(); }
//
// What was appended is kept (LogRetention), in memory or in files; a reader that comes late reads
// what is kept, then what comes, without a gap or a repetition. It reads from its own ring, which
// this end fills from history within its calls: a slow reader holds up neither the others nor this
// end. Where retention passes it by, it is told, and which position is the first that is kept.
//
// What lies in which memory, and why nothing is lost or repeated: docs/design/log.md.
//
// A thread at a time: that which made it, or has called adopt() since. Readers are served within
// calls: each append serves them, and looks at the kernel each millisecond, for those that come and
// go. A program that pauses calls serve() or look_around(), or puts descriptor() into its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/filter.hpp"
#include "millrace/flow/log_filter.hpp"
#include "millrace/flow/log_options.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/flow/stats.hpp"

namespace millrace::flow {

namespace detail {

/// A log of items of any size.
class LogEnd {
  public:
    using Watcher = std::function<void(const LogConsumer& consumer, base::Status how)>;

    LogEnd(const ItemFacts& item, const connect::Address& address, LogOptions options,
           std::vector<LogFilter> filters = {});
    LogEnd(LogEnd&&) noexcept;
    LogEnd& operator=(LogEnd&&) noexcept;
    ~LogEnd();

    [[nodiscard]] const connect::Address& address() const noexcept;
    base::Status try_append(std::span<const std::byte> item);
    base::Status append(std::span<const std::byte> item, const base::Deadline& deadline);
    /// `count` items of one type that lie side by side.
    BatchResult try_append_batch(const std::byte* items, std::size_t count);
    base::Status wait_acknowledged(std::uint64_t position, std::uint32_t readers,
                                   const base::Deadline& deadline);
    base::Status wait_acknowledged(std::uint64_t position, const std::vector<std::string>& names,
                                   const base::Deadline& deadline);
    base::Status flush(const base::Deadline& deadline);
    base::Status serve(const base::Deadline& deadline);
    base::Status close(const base::Deadline& deadline);
    void sync();
    std::size_t look_around();
    [[nodiscard]] int descriptor();
    void adopt() noexcept;
    void on_change(Watcher watcher);
    void forget(const std::string& name);

    [[nodiscard]] std::uint64_t first() const noexcept;
    [[nodiscard]] std::uint64_t end() const noexcept;
    /// Empty: it is not kept, or there is none yet. Of Bytes: where it lies until the next append.
    base::Status read(std::uint64_t position, std::span<const std::byte>& item) const;
    [[nodiscard]] LogEpoch epoch() const noexcept;
    [[nodiscard]] std::vector<LogConsumer> consumers() const;
    [[nodiscard]] LogStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;

    struct State;

  private:
    std::unique_ptr<State> state_;
};

/// What a log has whatever its items are.
class LogBase {
  public:
    /// Where it listens, with the port that was chosen.
    [[nodiscard]] const connect::Address& address() const noexcept { return end_.address(); }

    /// Until `readers` different names that are connected and alive have acknowledged everything
    /// before `position`: one that has died, or left, does not count, whatever it has acknowledged.
    /// Serves all readers meanwhile. `ok`, `timed_out`, `cancelled`; `closed`.
    base::Status wait_acknowledged(std::uint64_t position, std::uint32_t readers,
                                   const base::Deadline& deadline) {
        return end_.wait_acknowledged(position, readers, deadline);
    }
    /// Until each of these names has acknowledged everything before `position`, be it there or
    /// gone.
    base::Status wait_acknowledged(std::uint64_t position, const std::vector<std::string>& names,
                                   const base::Deadline& deadline) {
        return end_.wait_acknowledged(position, names, deadline);
    }
    /// Until everything that was appended lies in the ring of each reader that is there. A reader
    /// that retention has passed by, or that goes, is not waited for. `ok`, `timed_out`,
    /// `cancelled`.
    base::Status flush(const base::Deadline& deadline) { return end_.flush(deadline); }
    /// Serves readers until the deadline (`timed_out`), or until it is `cancelled`.
    base::Status serve(const base::Deadline& deadline) { return end_.serve(deadline); }
    /// Takes nothing new, waits until the readers that are there have everything in their rings,
    /// and says goodbye to them: as Producer's (docs/closing.md), of all: the first answer that is
    /// not `ok`. Files stay, for a log that goes on with them.
    base::Status close(const base::Deadline& deadline) { return end_.close(deadline); }
    /// Until everything that was appended and acknowledged is on the disk. Without it, that is the
    /// system's to do: what was appended outlives this process, but not the host. Throws Error.
    /// Nothing to do in memory.
    void sync() { end_.sync(); }

    /// Lets in the readers that wait outside, takes acknowledgements, and sends what readers have
    /// room for. Never blocks. How many readers there are.
    std::size_t look_around() { return end_.look_around(); }
    /// For a program's own loop: readable means that look_around() has something to do. Lives as
    /// long as this end. Not for EPOLLET. docs/loops.md.
    [[nodiscard]] int descriptor() { return end_.descriptor(); }
    /// From now on it belongs to the calling thread. A call in another one throws Error
    /// (invalid_argument), at the latest a millisecond after the last one in its own.
    void adopt() noexcept { end_.adopt(); }
    /// Called within calls of this end for each reader that has joined (`ok`), has left (`closed`),
    /// or is lost (`peer_lost`: it died, broke the protocol, or another one came by its name). It
    /// must not use this end.
    void on_change(LogEnd::Watcher watcher) { end_.on_change(std::move(watcher)); }
    /// What it has acknowledged is forgotten, and nothing is kept for it any more.
    void forget(const std::string& name) { end_.forget(name); }

    /// The first position that is kept, and that of the next item.
    [[nodiscard]] std::uint64_t first() const noexcept { return end_.first(); }
    [[nodiscard]] std::uint64_t end() const noexcept { return end_.end(); }
    [[nodiscard]] LogEpoch epoch() const noexcept { return end_.epoch(); }
    /// Those that are there, and the names that have acknowledged something.
    [[nodiscard]] std::vector<LogConsumer> consumers() const { return end_.consumers(); }
    [[nodiscard]] LogStats stats() const noexcept { return end_.stats(); }
    /// What is kept, and where; what carries it to the readers, of one of them.
    [[nodiscard]] std::string explain() const { return end_.explain(); }

  protected:
    LogBase(const ItemFacts& item, const connect::Address& address, LogOptions options,
            std::vector<LogFilter> filters = {})
        : end_{item, address, std::move(options), std::move(filters)} {}
    LogEnd end_;
};

}  // namespace detail

/// Of items of one trivially copyable type. Move-only.
template <class T>
class Log : public detail::LogBase {
    static_assert(PlainItem<T>,
                  "an item must be trivially copyable, aligned to at most 4096, and no address: "
                  "that means nothing in another process");

  public:
    /// Readers connect to it, and leave, at any time. With LogOptions::directory it goes on with
    /// what is there: everything up to the first item that is not whole. Throws Error
    /// (invalid_argument; permission, system: the address or the directory is in use …).
    [[nodiscard]] static Log listen(const connect::Address& address, LogOptions options = {}) {
        return Log{address, std::move(options)};
    }

    /// `ok`: it is part of the sequence, at the position that end() was, and on its way to all
    /// readers that have room. `full`: nothing may go (LogRetention::until_acknowledged); `closed`:
    /// by this end. Throws Error: a file cannot be made; then it does not become part of it.
    base::Status try_append(const T& item) { return end_.try_append(bytes_of(item)); }
    /// The same, waiting for acknowledgements where it is full. Also `timed_out`, `cancelled`.
    base::Status append(const T& item, const base::Deadline& deadline) {
        return end_.append(bytes_of(item), deadline);
    }
    /// Items from the front of `items`, as many as fit, which travel together.
    [[nodiscard]] BatchResult try_append_batch(std::span<const T> items) {
        return end_.try_append_batch(reinterpret_cast<const std::byte*>(items.data()),
                                     items.size());
    }
    /// The item at a position, from this end's own history: for a program that begins anew, and
    /// asks how far it had come. `empty`: it is not kept, or there is none yet.
    base::Status read(std::uint64_t position, T& item) const {
        std::span<const std::byte> found;
        const base::Status status = end_.read(position, found);
        if (status == base::Status::ok) std::memcpy(&item, found.data(), sizeof item);
        return status;
    }

  protected:
    Log(const connect::Address& address, LogOptions options,
        std::vector<detail::LogFilter> filters = {})
        : LogBase{detail::item_facts<T>(), address, std::move(options), std::move(filters)} {}

  private:
    static std::span<const std::byte> bytes_of(const T& item) noexcept {
        return std::as_bytes(std::span{&item, 1});
    }
};

/// Of items of any number of bytes, up to max_size().
template <>
class Log<Bytes> : public detail::LogBase {
  public:
    using Item = std::span<const std::byte>;

    [[nodiscard]] static Log listen(const connect::Address& address, LogOptions options = {}) {
        return Log{address, std::move(options)};
    }
    /// As those of Log. Also `too_large`: half of a reader's ring, and an eighth of what is kept,
    /// must hold an item.
    base::Status try_append(Item item) { return end_.try_append(item); }
    base::Status append(Item item, const base::Deadline& deadline) {
        return end_.append(item, deadline);
    }
    /// `item`: where it lies until the next append.
    base::Status read(std::uint64_t position, Item& item) const {
        return end_.read(position, item);
    }

  protected:
    Log(const connect::Address& address, LogOptions options,
        std::vector<detail::LogFilter> filters = {})
        : LogBase{detail::item_facts<Bytes>(), address, std::move(options), std::move(filters)} {}
};

/// Of items of T, or Bytes, of which each reader may ask for one of these filters
/// (flow/filter.hpp): LogReaderOptions::queue.filter. Positions stay those of the log, so that a
/// reader sees gaps; what its filter leaves out needs no acknowledgement. A filter is asked within
/// calls of this end, anew where a reader resumes.
template <class T, class... Filters>
class Log<Filtered<T, Filters...>> : public Log<T> {
  public:
    [[nodiscard]] static Log listen(const connect::Address& address, LogOptions options = {}) {
        return Log{address, std::move(options)};
    }

  private:
    Log(const connect::Address& address, LogOptions options)
        : Log<T>{address, std::move(options), {detail::log_filter<Filters, T>()...}} {}
};

}  // namespace millrace::flow
