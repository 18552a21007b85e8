// Where packets go: a destination of the wire. Queue pairs with the same destination share one, so
// that what they have leaves in few system calls: runs of equal size as one GSO send, the rest by
// one sendmmsg. Made by the port; used by the adapters of queue pairs and datagrams.
//
//   arena   | packet | packet | packet | packet | short | packet | ...
//   runs    |<-- one send: all but the last equal   --->|<------ ...
//
// At the public port the kernel, which gives a send or what it has joined on arrival (GRO) to one
// socket, goes by the first packet's queue pair number. So a run goes to one process, and what goes
// to another one by another lane: off the loopback, where packets are joined by their addresses and
// ports, that has a source port of its own.
//
// A packet's ICRC covers its IPv4 identification (IPv6 has none). An unconnected socket that never
// fragments sends 0, and where the kernel or a device cuts a GSO send into packets, they are
// numbered from 0 on: so the n-th packet of a run is composed for identification n.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "roce/icrc.hpp"
#include "roce/outlet.hpp"
#include "system/descriptor.hpp"
#include "system/mapping.hpp"
#include "system/spin_lock.hpp"
#include "wire/packet_trace.hpp"
#include "wire/wire_address.hpp"
#include "wire/wire_counts.hpp"

namespace millrace::soft {

class WireRoute;

/// Whether packets have an ICRC.
enum class Check : bool { left_out, icrc };
/// What stands in its place between ends that have agreed on none: "none".
inline constexpr std::uint32_t no_icrc = 0x656e6f6e;

/// The routes that have something to send. Thread-safe, a leaf.
class WaitingRoutes {
  public:
    /// Before one more route is made. Throws std::bad_alloc.
    void make_room();
    void add(std::shared_ptr<WireRoute> route) noexcept;
    /// Null: none is left.
    [[nodiscard]] std::shared_ptr<WireRoute> take() noexcept;
    [[nodiscard]] std::size_t count() const noexcept {
        return count_.load(std::memory_order_relaxed);
    }

  private:
    SpinLock lock_;
    std::vector<std::shared_ptr<WireRoute>> routes_;
    std::size_t room_ = 0;
    std::atomic<std::size_t> count_{0};
};

/// What the routes have of their port, which outlives them.
struct WireExit {
    const std::atomic<bool>& usable;  ///< false: in a child made by fork
    const int socket;
    const UdpAddress own;
    const bool joins;  ///< packets may be joined on their way: those of the lanes are not to be
    WireCounts& counts;
    PacketTrace* const trace;
    WaitingRoutes& waiting;
};

class WireRoute : public std::enable_shared_from_this<WireRoute> {
  public:
    /// By WirePort::route. Throws std::bad_alloc.
    WireRoute(const WireExit& exit, const UdpAddress& to);
    ~WireRoute() = default;
    WireRoute(const WireRoute&) = delete;
    WireRoute& operator=(const WireRoute&) = delete;

    [[nodiscard]] const UdpAddress& to() const noexcept { return to_; }
    /// Sends what was committed. False: some of it is still there, as the system takes nothing. Any
    /// thread.
    bool flush() noexcept;
    /// The same for who goes: what another thread is about to send has left, too, when it returns.
    void see_off() noexcept;
    /// So many of its packets had to be sent again. Where that becomes most of them, runs of equal
    /// size go as one send no more: a device may have numbered the packets in a way of its own, and
    /// a peer that checks ICRCs drops them. Any thread.
    void note_repeated(std::uint64_t packets) noexcept {
        repeated_.fetch_add(packets, std::memory_order_relaxed);
    }

  private:
    friend class WireOutlet;
    /// What goes by one send: `packets` of `size`, of which the last may be shorter.
    struct Run {
        std::uint32_t offset;
        std::uint32_t bytes;
        std::uint32_t size;
        std::uint32_t packets;
        std::uint32_t lane;
    };
    /// To one process.
    struct Lane {
        std::uint32_t slot;  ///< its, or 0 where it has the port for itself
        Descriptor own_socket;
        int socket;
        UdpAddress from;
        roce::Icrc icrc;
    };
    static constexpr std::size_t most_runs = 64;
    /// Twice what one send takes: a message's first packet is longer than the next ones, and goes
    /// by a send of its own.
    static constexpr std::size_t arena_bytes = 131072;

    // With the lock.
    [[nodiscard]] std::uint8_t* begin(std::size_t bytes) noexcept;
    void commit(Check check) noexcept;
    [[nodiscard]] std::uint32_t lane_to(std::uint32_t qpn) noexcept;
    void add_lane(std::uint32_t slot) noexcept;
    [[nodiscard]] bool continues(const Run& run, std::uint32_t lane,
                                 std::size_t bytes) const noexcept;
    /// The last run has no room for so many bytes more.
    [[nodiscard]] bool is_full(std::size_t bytes) const noexcept;
    [[nodiscard]] bool send_all() noexcept;
    /// So many of the runs from the first on; negative: errno says why the first did not go.
    [[nodiscard]] int send_some() noexcept;
    void give_up_first(int error) noexcept;
    /// False: none has gone.
    bool send_one_by_one(const Run& run) noexcept;
    void note_sent(const Run& run) noexcept;
    void judge_segments() noexcept;
    void wait_for_flush() noexcept;

    const WireExit& exit_;
    const UdpAddress to_;
    std::atomic<std::uint64_t> repeated_{0};  ///< since segments were judged
    SpinLock lock_;                           ///< the rest
    bool segments_ = true;                    ///< runs of equal size go as one send
    std::uint64_t sent_ = 0;                  ///< packets, since segments were judged
    std::vector<Lane> lanes_;
    std::uint32_t last_lane_ = 0;
    Mapping arena_;
    std::array<Run, most_runs> runs_{};
    std::size_t first_run_ = 0;  ///< those before it have gone
    std::size_t run_count_ = 0;
    std::size_t used_ = 0;
    std::size_t begun_ = 0;  ///< bytes of the packet that is being composed, with its ICRC
    bool is_waiting_ = false;
    int told_ = 0;  ///< errno that has been logged last
};

/// A route for one who composes packets: locked from the first `begin` until this goes. To be made
/// for one call of a state machine, and followed by WirePort::flush.
class WireOutlet final : public roce::Outlet {
  public:
    explicit WireOutlet(WireRoute& route, Check check = Check::icrc) noexcept
        : route_{route}, check_{check} {}
    ~WireOutlet() {
        if (is_locked_) route_.lock_.unlock();
    }
    [[nodiscard]] std::uint8_t* begin(std::size_t bytes) noexcept override {
        if (!is_locked_) route_.lock_.lock();
        is_locked_ = true;
        return route_.begin(bytes);
    }
    void commit() noexcept override { route_.commit(check_); }

  private:
    WireRoute& route_;
    const Check check_;
    bool is_locked_ = false;
};

/// The route of an ICRC.
[[nodiscard]] roce::Icrc icrc_between(const UdpAddress& from, const UdpAddress& to) noexcept;

}  // namespace millrace::soft
