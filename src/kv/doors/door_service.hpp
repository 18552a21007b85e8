// What any door needs, besides its connections: one for all threads of a server. Made by the
// server; each door has a service of its own made of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include "gate.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/kv/doors.hpp"
#include "millrace/kv/store.hpp"
#include "saves.hpp"

namespace millrace::kv {

class TlsIdentity;

/// Of all doors of a server together: what DoorOptions limits.
struct DoorCrowd {
    std::atomic<std::uint64_t> open{0};  ///< connections
    std::atomic<std::uint64_t> held{0};  ///< bytes of requests and answers
};

struct DoorService {
    DoorService(Store& its_store, Gate& its_gate, DoorCrowd& its_crowd, const DoorOptions& chosen)
        : store{its_store}, gate{its_gate}, crowd{its_crowd}, options{chosen} {}
    /// OpenDoors has each kind's as one of these.
    virtual ~DoorService() = default;
    DoorService(const DoorService&) = delete;
    DoorService& operator=(const DoorService&) = delete;

    /// Unix time in milliseconds of the store's clock, and back. One way and back is the same.
    [[nodiscard]] std::int64_t unix_of(base::Clock::time_point time) const noexcept {
        return (time.time_since_epoch().count() + unix_offset_ns) / 1'000'000;
    }
    /// A time that no clock has is as far away as it can be.
    [[nodiscard]] base::Clock::time_point of_unix(std::int64_t milliseconds) const noexcept;
    [[nodiscard]] std::int64_t unix_now() const noexcept { return unix_of(base::Clock::now()); }
    /// In the same time whatever is given, right or wrong: a wrong one is counted.
    [[nodiscard]] bool admits(std::string_view user, std::string_view password) noexcept;

    Store& store;
    Gate& gate;
    DoorCrowd& crowd;
    const DoorOptions options;
    const TlsIdentity* identity = nullptr;  ///< null: without TLS
    const base::Clock::time_point began = base::Clock::now();
    /// Read once, so that a time that was set comes back as it was whatever becomes of the
    /// system's.
    const std::int64_t unix_offset_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                            std::chrono::system_clock::now().time_since_epoch())
                                            .count() -
                                        base::Clock::now().time_since_epoch().count();
    std::atomic<std::uint64_t> sessions{0};  ///< that ever were: the last one's number
    std::atomic<std::uint64_t> denied{0};    ///< wrong passwords
    /// Called by any of the server's threads.
    std::function<void()> note_expiring;  ///< an item that expires was set
    std::function<DoorStats()> stats;
    Saves* saves = nullptr;  ///< its server's; never null once it serves
};

}  // namespace millrace::kv
