// What the commands of the RESP door need, besides a client and its words: one for all threads of a
// server. Made by the server, used by the door and the commands.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "function_ref.hpp"
#include "gate.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/kv/doors.hpp"
#include "millrace/kv/store.hpp"
#include "scan.hpp"

namespace millrace::kv {

struct RespSession;

struct RespService {
    RespService(Store& its_store, Gate& its_gate, DoorOptions chosen)
        : store{its_store}, gate{its_gate}, options{std::move(chosen)} {}

    /// Unix time in milliseconds of the store's clock, and back. One way and back is the same.
    [[nodiscard]] std::int64_t unix_of(base::Clock::time_point time) const noexcept {
        return (time.time_since_epoch().count() + unix_offset_ns) / 1'000'000;
    }
    [[nodiscard]] base::Clock::time_point of_unix(std::int64_t milliseconds) const noexcept;
    [[nodiscard]] std::int64_t unix_now() const noexcept { return unix_of(base::Clock::now()); }

    Store& store;
    Gate& gate;
    const DoorOptions options;
    Scans scans{store};
    const base::Clock::time_point began = base::Clock::now();
    /// Read once, so that a time that was set comes back as it was whatever becomes of the
    /// system's.
    const std::int64_t unix_offset_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                            std::chrono::system_clock::now().time_since_epoch())
                                            .count() -
                                        base::Clock::now().time_since_epoch().count();
    std::atomic<std::uint64_t> sessions{0};  ///< that ever were: the last one's number
    std::atomic<std::uint64_t> open{0};      ///< connections, of all threads
    std::atomic<std::uint64_t> held{0};      ///< bytes of requests and answers, of all threads
    std::atomic<std::uint64_t> denied{0};    ///< wrong passwords
    /// Called by any of the server's threads.
    std::function<void()> note_expiring;  ///< an item that expires was set
    std::function<DoorStats()> stats;
    /// With the gate alone: calls with every session.
    std::function<void(FunctionRef<void(const RespSession&)>)> each_session;
};

}  // namespace millrace::kv
