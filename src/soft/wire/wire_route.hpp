// Where packets go: a destination of the wire. Queue pairs with the same destination share one, so
// that what they have leaves in few system calls: runs of equal size as one GSO send, the rest by
// one sendmmsg. Made by the port; used by the adapters of queue pairs and datagrams.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "system/mapping.hpp"
#include "system/spin_lock.hpp"
#include "wire/wire_address.hpp"

namespace millrace::soft {

class WirePort;

class WireRoute {
  public:
    /// By WirePort::route.
    WireRoute(WirePort& port, UdpAddress to, bool segments);
    ~WireRoute() = default;
    WireRoute(const WireRoute&) = delete;
    WireRoute& operator=(const WireRoute&) = delete;

    [[nodiscard]] const UdpAddress& to() const noexcept { return to_; }

    /// Room for a packet of `bytes` (a multiple of 4), from the BTH to the padding; the port adds
    /// the ICRC. What stands there is private until `commit`, which sends it at the next `flush`,
    /// or earlier. Empty: the system takes nothing just now; to be tried again when the queue pair
    /// is next moved. Not empty: the route is locked until `commit`. Any thread.
    [[nodiscard]] std::span<std::byte> begin(std::size_t bytes) noexcept;
    void commit() noexcept;

    /// Sends what was committed. False: some of it is still there, as the system takes nothing.
    bool flush() noexcept;

    /// Runs of equal size may go as one send (GSO). Off for routes to hardware, whose packets' IP
    /// identification it would have to know.
    void allow_segments(bool allowed) noexcept {
        segments_.store(allowed, std::memory_order_relaxed);
    }

  private:
    /// What goes by one send: `packets` of `size`, of which the last may be shorter.
    struct Run {
        std::uint32_t offset;
        std::uint32_t bytes;
        std::uint32_t size;
        std::uint32_t packets;
    };
    static constexpr std::size_t most_runs = 64;
    static constexpr std::size_t arena_bytes = 65536;

    [[nodiscard]] bool continues(const Run& run, std::size_t bytes) const noexcept;
    [[nodiscard]] bool send_all() noexcept;
    [[nodiscard]] bool give_up(Run& run, int error) noexcept;

    WirePort& port_;
    const UdpAddress to_;
    std::atomic<bool> segments_;
    std::atomic<bool> has_told_{false};
    std::atomic<bool> is_waiting_{false};  ///< has something, and the port knows
    SpinLock lock_;
    Mapping arena_;
    std::array<Run, most_runs> runs_{};
    std::size_t run_count_ = 0;
    std::size_t used_ = 0;
    std::size_t begun_ = 0;  ///< bytes of the packet that is being composed, with its ICRC
};

}  // namespace millrace::soft
