// What one of a server's threads does with requests: has the service carry them out, and counts
// them. Used by Server.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gate.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/kv/protocol.hpp"
#include "millrace/message/server.hpp"
#include "service.hpp"

namespace millrace::kv {

/// One thread calls it; any may ask what it counted.
class Desk {
  public:
    explicit Desk(Service& service) noexcept : service_{&service} {}

    void operator()(message::Request& request) {
        const std::uint16_t command = request.procedure();
        base::Counter{&taken_[command < commands ? command : 0]}.add();
        if (--until_timed_ != 0) [[likely]] {
            (*service_)(request);
        } else {
            serve_timed(request);
        }
    }

    [[nodiscard]] std::uint64_t taken(std::size_t command) noexcept {
        return base::Counter{&taken_[command]}.value();
    }
    /// Nanoseconds; null: of that command none are kept.
    [[nodiscard]] base::Histogram* times_of(Command command) noexcept {
        switch (command) {
            case Command::get: return &times_[0];
            case Command::set: return &times_[1];
            case Command::del: return &times_[2];
            default: return nullptr;
        }
    }

  private:
    // Apart, so that the others need no place for what this remembers.
    [[gnu::noinline]] void serve_timed(message::Request& request) {
        draw();
        const std::uint64_t begin = base::ticks();
        (*service_)(request);
        const std::uint64_t ticks = base::ticks() - begin;
        if (auto* const times = times_of(static_cast<Command>(request.procedure()))) {
            times->record(static_cast<std::uint64_t>(static_cast<double>(ticks) * ns_per_tick_));
        }
    }
    /// Which request is timed next: by chance, so that no client's habit hides from it.
    void draw() noexcept {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 17;
        random_ ^= random_ << 5;
        until_timed_ = 1 + random_ % (2 * timed_one_of - 1);
    }

    Service* service_;
    std::uint32_t until_timed_ = 1;  ///< the first one is, so that there is a time at once
    std::uint32_t random_ = 2463534242;
    std::array<std::uint64_t, commands> taken_{};
    double ns_per_tick_ = 1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}));
    std::array<base::Histogram, 3> times_{};
};

/// The same where commands of other clients may have to wait for each other: with the gate of a
/// server that has doors.
class GatedDesk {
  public:
    GatedDesk(Desk& desk, Gate& gate, std::size_t thread) noexcept
        : desk_{&desk}, gate_{&gate}, thread_{thread} {}

    void operator()(message::Request& request) {
        const Gate::Inside inside{*gate_, thread_};
        (*desk_)(request);
    }

  private:
    Desk* desk_;
    Gate* gate_;
    std::size_t thread_;
};

}  // namespace millrace::kv
