// How a log and its readers are made, and what they tell of themselves. Used by log.hpp and
// log_reader.hpp.
//
// A position is a place between two items: how many there were before it. So an item's position is
// that of the place before it, and "everything before p" are the items 0 to p - 1.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/flow/options.hpp"

namespace millrace::flow {

/// What is kept of a log. The oldest goes first, an eighth of `bytes` at a time.
struct LogRetention {
    /// So many bytes are kept at most, and 7/8 of them at least: of items, of the 8 bytes more that
    /// each item of Bytes takes, and, in files, of 4 for each item's checksum. 4 KiB to 1 TiB.
    std::uint64_t bytes = std::uint64_t{64} << 20;
    /// What is older goes although there would be room for it. 0: whatever its age.
    std::chrono::nanoseconds age{0};
    /// Nothing goes that one of these named consumers has not acknowledged. Where there is no room
    /// then, append() answers `full`. A consumer that never comes is forgotten by Log::forget().
    std::vector<std::string> until_acknowledged{};
};

struct LogOptions {
    /// Of each reader's queue, and of this end's waits. The ring's capacity is in bytes, as that of
    /// queues of Bytes: it bounds what is on the way to one reader.
    Options queue{};
    LogRetention retention{};
    /// Where history and acknowledgements are kept in files, so that a process that begins anew
    /// goes on with the sequence. One process at a time. Empty: in memory alone.
    std::string directory{};
    /// Readers at a time, 1 to 32,768; one more is refused, with the reason.
    std::uint32_t max_readers = 1024;
};

/// Which sequence it is, and how often it was taken up again. A log that begins anew has another
/// `sequence`; one that goes on with its files has the same one, and the next `number`.
struct LogEpoch {
    std::uint64_t sequence = 0;  ///< 0: any
    std::uint32_t number = 0;
    friend bool operator==(const LogEpoch&, const LogEpoch&) = default;
};

/// Where a reader begins.
struct LogStart {
    enum class At : std::uint32_t {
        acknowledged,  ///< where its name has acknowledged; `earliest`, if it never has
        earliest,      ///< the first item that is kept
        latest,        ///< the next one to come
        position,
    };
    At at = At::acknowledged;
    std::uint64_t place = 0;  ///< of At::position
    /// Whose position that is. If the log has begun anew since, or has lost items before it, the
    /// reader is refused.
    LogEpoch epoch{};

    [[nodiscard]] static LogStart acknowledged() noexcept { return {}; }
    [[nodiscard]] static LogStart earliest() noexcept { return {.at = At::earliest}; }
    [[nodiscard]] static LogStart latest() noexcept { return {.at = At::latest}; }
    [[nodiscard]] static LogStart position(std::uint64_t place, LogEpoch epoch = {}) noexcept {
        return {.at = At::position, .place = place, .epoch = epoch};
    }
};

struct LogReaderOptions {
    /// As LogOptions::queue. With `queue.filter`, what the log makes of each item
    /// (flow/filter.hpp).
    Options queue{};
    /// Under which its acknowledgements are kept: 1 to 64 bytes. A reader that comes by a name
    /// which is in use takes the place of the one before. Empty: it acknowledges nothing.
    std::string name{};
    LogStart from{};
};

/// A consumer, as its log knows it.
struct LogConsumer {
    std::uint64_t number = 0;  ///< 1, 2, 3 … as they have joined; 0: it is not there
    std::string name{};        ///< empty: it has none
    std::string peer{};        ///< "127.0.0.1:41234 (pid 4711 on host)"; empty: it is not there
    std::uint64_t sent = 0;    ///< everything before it is in its ring, or was
    std::uint64_t acknowledged = 0;
    std::uint64_t bytes = 0;  ///< of frames with items that went to it
    FilterCounts filter{};    ///< where it has asked for one
};

struct LogStats {
    std::uint64_t items = 0;  ///< appended by this end
    std::uint64_t first = 0;  ///< the first position that is kept
    std::uint64_t end = 0;    ///< that of the next item
    std::uint64_t readers = 0;
    std::uint64_t joined = 0;
    std::uint64_t closed = 0;  ///< readers that have left in good order
    std::uint64_t lost = 0;    ///< readers that have died, or broke the protocol
    std::uint64_t acknowledgements = 0;
    std::uint64_t passed = 0;  ///< how often retention has passed a reader
    std::uint64_t frames = 0;  ///< that went to readers: an item, or as many as had gathered
    std::uint64_t full = 0;    ///< appends that were held up by until_acknowledged
    std::uint64_t sleeps = 0;
};

struct LogReaderStats {
    std::uint64_t items = 0;
    std::uint64_t frames = 0;  ///< that they came by
    std::uint64_t acknowledgements = 0;
    std::uint64_t skipped = 0;   ///< items that were no longer kept, and that skip() went past
    std::uint64_t left_out = 0;  ///< items that the filter left out
    std::uint64_t threw = 0;     ///< of these, for which it threw; 1 from the first on, and all of
                                 ///< them with the next item
};

}  // namespace millrace::flow
