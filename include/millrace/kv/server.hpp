// A key-value server: a Store that a message::ServerGroup serves. One thread serves all its
// clients, or several do, each its own; other threads of the program may use the store meanwhile.
//
//     auto server = kv::Server::listen(connect::Address::parse(":7400"), {});
//     (void)server.serve(base::Deadline::never());
//
// Source: work 002, whose server has a thread for each client; protocol.hpp says what travels.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/kv/doors.hpp"
#include "millrace/kv/protocol.hpp"
#include "millrace/kv/store.hpp"
#include "millrace/message/server.hpp"
#include "millrace/message/server_group.hpp"

namespace millrace::kv {

/// What was read of a snapshot: how many items.
struct SnapshotRead {
    std::uint64_t items = 0;    ///< set
    std::uint64_t expires = 0;  ///< of these, with a time
    std::uint64_t over = 0;     ///< left out, as their time has passed
    std::uint64_t refused = 0;  ///< the store had no memory for them
};

/// What became of snapshots since the server was made.
struct SaveStats {
    std::uint64_t written = 0;
    std::uint64_t failed = 0;  ///< the log has why
    std::int64_t last_at = 0;  ///< seconds of Unix time; before the first: when the server was made
    std::uint64_t took_ns = 0;  ///< the last one
    bool has_failed = false;    ///< the last one that ended
    bool is_writing = false;    ///< while clients are served, now
};

/// What clients may ask for that concerns all of them. The others get Code::denied.
struct Permissions {
    bool dump = false;   ///< to read every item at once
    bool reset = false;  ///< to remove every item
    bool exit = false;   ///< to end the server
};

struct ServerOptions {
    StoreOptions store{};
    /// Requests are as long as the longest item, whatever this says of max_request_bytes; and it is
    /// a key-value store, whatever it says of `service`.
    message::ServerOptions messages{};
    /// Those that serve. Any of them may have any key: the store is one for all.
    message::ServerThreads threads{};
    Permissions permitted{};
    /// Where clients come that speak another protocol.
    DoorOptions doors{};
    /// The file that the store begins with, if it is there, and that save() writes; empty: none.
    std::string snapshot_file{};
    /// How often serve() writes it by itself, while it serves clients, if something has changed; 0:
    /// never. For as long as it writes, that is a thread's work.
    std::chrono::nanoseconds snapshot_period{0};
    /// How often items whose time is over are looked for, once there are items that expire.
    std::chrono::nanoseconds sweep_period = std::chrono::milliseconds{100};
};

/// Of one request in so many, on average, a server takes the time: which ones, chance decides. The
/// others pay 3 instructions for it; on average a request pays 6.
inline constexpr std::uint32_t timed_one_of = 32;
/// The commands that it does that for.
inline constexpr std::array timed_commands = {Command::get, Command::set, Command::del};

/// How long requests of one command took within the server, from the moment its thread had them to
/// the moment their answers were laid where clients find them: not how long they waited before, nor
/// their way. Since the server was made. Quantiles are at most base::Histogram::precision above.
struct ServiceTimes {
    std::uint64_t timed = 0;  ///< requests
    double mean_ns = 0;
    std::uint64_t p50_ns = 0;
    std::uint64_t p90_ns = 0;
    std::uint64_t p99_ns = 0;
    std::uint64_t p999_ns = 0;
    std::uint64_t longest_ns = 0;
};

/// Belongs to the thread that made it or called adopt() since; stop(), store(), stats(),
/// requests(), service_times(), door_stats(), door_times(), save(), save_stats() and loaded() are
/// for any thread. Move-only.
class Server {
  public:
    /// Throws Error as message::Server::listen, Store, and connect::PlainListener;
    /// invalid_argument: DoorOptions or snapshot_period out of range, or the snapshot is not what
    /// was written.
    [[nodiscard]] static Server listen(const connect::Address& address, ServerOptions options);
    Server(Server&&) noexcept;
    Server& operator=(Server&&) noexcept;
    ~Server();

    [[nodiscard]] const connect::Address& address() const noexcept;
    /// Of a door; null: it is not open.
    [[nodiscard]] const connect::Address* door_address(DoorKind kind) const noexcept;
    [[nodiscard]] Store& store() noexcept;
    [[nodiscard]] const Store& store() const noexcept;

    /// Serves by all its threads until it is stopped, by stop() or a client's EXIT (`closed`), or
    /// `timed_out`, or `cancelled`. Throws Error as message::ServerGroup::run.
    base::Status serve(const base::Deadline& deadline);
    /// Ends serve() at once. Any thread, and signal handlers.
    void stop() noexcept;
    /// Answers what has come, refuses what comes, and closes every channel in good order, as
    /// message::Server::close: after `timed_out` the store has its clients still, but no door.
    base::Status close(const base::Deadline& deadline);
    /// From now on it belongs to the calling thread.
    void adopt() noexcept;

    /// Writes all items into the snapshot file, aside first: under its name there is always a whole
    /// one. How many. What changes meanwhile is in it as it was, as it is, or not: all that is
    /// there is in it once the server has been closed. A snapshot that is being written while it
    /// serves clients is given up for it. Blocks for as long as the disk takes. Throws Error: it
    /// cannot be written, and is what it was; invalid_argument: ServerOptions name no file.
    std::uint64_t save() const;
    [[nodiscard]] SaveStats save_stats() const noexcept;
    /// What the store began with: items of the snapshot that it has, those whose time was over, and
    /// those that it had no memory for.
    [[nodiscard]] SnapshotRead loaded() const noexcept;

    [[nodiscard]] message::ServerStats stats() const noexcept;
    /// How many were taken, by Command; whatever is none counts as Command::unknown.
    [[nodiscard]] std::array<std::uint64_t, commands> requests() const noexcept;
    /// Of all threads together; of other commands than timed_commands nothing is timed.
    [[nodiscard]] ServiceTimes service_times(Command command) const;
    /// Of a door; all 0 if it is not open. Of its commands one in timed_one_of is timed, whichever
    /// it is.
    [[nodiscard]] DoorStats door_stats(DoorKind kind) const noexcept;
    [[nodiscard]] ServiceTimes door_times(DoorKind kind) const;
    /// What was chosen and why: the store, the server of messages.
    [[nodiscard]] std::string explain() const;

  private:
    struct State;
    explicit Server(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::kv
