// The latest value, and nothing else (work 000, chapter 1: an aggregation queue whose Get "might
// return only the latest item from the queue, discarding the rest"). A writer overwrites cells in
// its reader's memory; nothing queues, so nothing is ever full of what nobody wants any more, and a
// writer never waits for its reader.
//
//     auto prices = flow::LatestReader<Price>::listen("host:7000", {.cells = 500}, deadline);
//     Price price;
//     if (prices.try_get(instrument, price) == Status::ok) …           // newer than the last one
//
//     auto prices = flow::LatestWriter<Price>::connect("host:7000", {}, deadline);
//     if (prices.put(instrument, price) != Status::ok) …
//
// Each cell has four places for a value, which are taken in turn, and a version, which counts what
// was put:
//
//   put n    1 WRITE the value to place n mod 4
//            2 WRITE version n                          both on one queue pair, or stores
//   get      1 read version v                           v = 0: nothing was put yet
//            2 copy place v mod 4
//            3 read the version again: at most v + 2?   else begin anew
//
// So a reader copies what is not being written: place v mod 4 is written again by put v + 4, which
// begins after version v + 3. A reader that sees a byte of it would see that version. Versions
// travel as words that tell whether they are torn (ring/position.hpp), values may land in any order
// of their bytes. A writer that dies between 1 and 2 leaves what was there before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/item_name.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/ring/carrier.hpp"

namespace millrace::flow {

struct LatestOptions {
    /// Reader: how many values there are, 1 to 1,048,576, all together at most 1 GiB with their
    /// four places. Writer: 0, or the reader must have as many.
    std::uint32_t cells = 0;
    /// How waiting operations escalate from spinning to sleeping.
    base::WaitPolicy wait{};
    std::shared_ptr<connect::Endpoint> endpoint{};  ///< null: Endpoint::shared()
    connect::Admission admission{};
    ring::Carrier carrier = ring::Carrier::automatic;
};

struct LatestStats {
    std::uint64_t values = 0;  ///< put; or got
    /// Reader: versions that were overwritten before they were got. Writer: 0.
    std::uint64_t passed_over = 0;
    std::uint64_t repeated = 0;  ///< reader: copies that were begun anew. Writer: 0
    std::uint64_t requests = 0;  ///< that were posted
    std::uint64_t sleeps = 0;
    std::uint64_t events = 0;  ///< sent, or received
};

namespace detail {

/// Either end, of values of any size. One thread at a time.
class LatestEnd {
  public:
    enum class Role : std::uint8_t { writer, reader };

    [[nodiscard]] static LatestEnd connect(Role role, const ItemFacts& item,
                                           const connect::Address& address, LatestOptions options,
                                           const base::Deadline& deadline);
    [[nodiscard]] static LatestEnd listen(Role role, const ItemFacts& item,
                                          const connect::Address& address, LatestOptions options,
                                          const base::Deadline& deadline);
    LatestEnd(LatestEnd&&) noexcept;
    LatestEnd& operator=(LatestEnd&&) noexcept;
    ~LatestEnd();

    base::Status put(std::uint32_t cell, const void* value) noexcept;
    base::Status put(std::uint32_t cell, const void* value, const base::Deadline& deadline);
    base::Status flush(const base::Deadline& deadline);

    base::Status try_get(std::uint32_t cell, void* value) noexcept;
    base::Status read(std::uint32_t cell, void* value) noexcept;
    base::Status next(std::uint32_t& cell, void* value) noexcept;
    base::Status wait(const base::Deadline& deadline);
    base::Status look_around() noexcept;
    [[nodiscard]] int descriptor();

    [[nodiscard]] std::uint32_t cells() const noexcept;
    base::Status close(const base::Deadline& deadline);
    [[nodiscard]] LatestStats stats() const noexcept;
    [[nodiscard]] std::string explain() const;
    [[nodiscard]] std::string failure() const;

    struct State;

  private:
    explicit LatestEnd(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

/// What both ends are made by.
template <class End, class T, LatestEnd::Role role>
class LatestFactories {
  public:
    /// Connects to an other end that listens. Throws Error.
    [[nodiscard]] static End connect(const connect::Address& address, LatestOptions options,
                                     const base::Deadline& deadline) {
        return End{
            LatestEnd::connect(role, item_facts<T>(), address, std::move(options), deadline)};
    }
    /// Listens for one other end, and then no more. Throws Error.
    [[nodiscard]] static End listen(const connect::Address& address, LatestOptions options,
                                    const base::Deadline& deadline) {
        return End{LatestEnd::listen(role, item_facts<T>(), address, std::move(options), deadline)};
    }
};

}  // namespace detail

/// Move-only; one thread at a time. Cells are numbered from 0; one beyond cells() is `too_large`.
template <class T>
class LatestWriter
    : public detail::LatestFactories<LatestWriter<T>, T, detail::LatestEnd::Role::writer> {
    static_assert(PlainItem<T>,
                  "a value must be trivially copyable, aligned to at most 4096, and no address: "
                  "that means nothing in another process");

  public:
    /// `ok`: it is the latest. `full`: not sent, as the device is busy with older ones still: put
    /// a newer one later (never where values are stored). `closed`, `peer_lost`.
    base::Status put(std::uint32_t cell, const T& value) noexcept { return end_.put(cell, &value); }
    base::Status put(const T& value) noexcept { return end_.put(0, &value); }
    /// The same, waiting for the device. Also `timed_out`, `cancelled`.
    base::Status put(std::uint32_t cell, const T& value, const base::Deadline& deadline) {
        return end_.put(cell, &value, deadline);
    }
    /// Until all that was put is in the reader's memory.
    base::Status flush(const base::Deadline& deadline) { return end_.flush(deadline); }
    /// Puts nothing new, flushes and says goodbye, as docs/closing.md says. The reader keeps what
    /// it has.
    base::Status close(const base::Deadline& deadline) { return end_.close(deadline); }
    /// Looks after the reader, by a system call, as puts do each millisecond: for a writer that
    /// pauses. `ok`, `closed`, `peer_lost`. Never blocks.
    base::Status look_around() noexcept { return end_.look_around(); }

    [[nodiscard]] std::uint32_t cells() const noexcept { return end_.cells(); }
    [[nodiscard]] LatestStats stats() const noexcept { return end_.stats(); }
    [[nodiscard]] std::string explain() const { return end_.explain(); }
    /// Why the reader is lost. Else empty.
    [[nodiscard]] std::string failure() const { return end_.failure(); }

  private:
    friend detail::LatestFactories<LatestWriter, T, detail::LatestEnd::Role::writer>;
    explicit LatestWriter(detail::LatestEnd end) noexcept : end_{std::move(end)} {}
    detail::LatestEnd end_;
};

/// Move-only; one thread at a time. Cells as above.
template <class T>
class LatestReader
    : public detail::LatestFactories<LatestReader<T>, T, detail::LatestEnd::Role::reader> {
    static_assert(PlainItem<T>,
                  "a value must be trivially copyable, aligned to at most 4096, and no address: "
                  "that means nothing in another process");

  public:
    /// `ok`: it is newer than the last that was got of this cell. `empty`: there is none (or, which
    /// is rare, it changes faster than it can be copied: look again). `closed`, `peer_lost`: and
    /// there will be none.
    base::Status try_get(std::uint32_t cell, T& value) noexcept {
        return end_.try_get(cell, &value);
    }
    base::Status try_get(T& value) noexcept { return end_.try_get(0, &value); }
    /// The latest, whether it was got before or not; also after the writer's end. `empty`: nothing
    /// was ever put.
    base::Status read(std::uint32_t cell, T& value) noexcept { return end_.read(cell, &value); }
    /// The latest of the next cell, going round, that has a newer one. As try_get.
    base::Status next(std::uint32_t& cell, T& value) noexcept { return end_.next(cell, &value); }
    /// Until some cell has a newer value (`ok`). `closed`, `peer_lost`, `timed_out`, `cancelled`.
    base::Status wait(const base::Deadline& deadline) { return end_.wait(deadline); }
    /// For a program's own loop: readable means that some cell may have a newer value, or the end
    /// has come. It stays readable until next() has answered `empty`, and for LatestOptions::wait
    /// .spin after the last value. Throws Error (resource_exhausted). docs/loops.md.
    [[nodiscard]] int descriptor() { return end_.descriptor(); }
    /// Looks after the writer, by a system call, and never falls asleep, even with a
    /// descriptor. `empty`: it is there, or left a newer value; `closed`, `peer_lost`.
    base::Status look_around() noexcept { return end_.look_around(); }
    /// Takes no more; the writer reads `closed`.
    void close() { (void)end_.close(base::Deadline::now()); }

    [[nodiscard]] std::uint32_t cells() const noexcept { return end_.cells(); }
    [[nodiscard]] LatestStats stats() const noexcept { return end_.stats(); }
    [[nodiscard]] std::string explain() const { return end_.explain(); }
    /// Why the writer is lost. Else empty.
    [[nodiscard]] std::string failure() const { return end_.failure(); }

  private:
    friend detail::LatestFactories<LatestReader, T, detail::LatestEnd::Role::reader>;
    explicit LatestReader(detail::LatestEnd end) noexcept : end_{std::move(end)} {}
    detail::LatestEnd end_;
};

}  // namespace millrace::flow
