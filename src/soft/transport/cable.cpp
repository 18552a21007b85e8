#include "transport/cable.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "millrace/base/log.hpp"

namespace millrace::soft {
namespace {

constexpr unsigned part_bits = 24;  ///< a byte at 100 Gb/s takes 0.08 ns: count in parts of one

[[nodiscard]] std::uint64_t parts_per_byte(std::uint64_t bits_per_second) noexcept {
    if (bits_per_second == 0) return 0;
    const double ns = 8e9 / static_cast<double>(bits_per_second);
    return static_cast<std::uint64_t>(ns * (1U << part_bits) + 0.5);
}

std::mutex links_mutex;
std::vector<std::weak_ptr<Cable>>& cables() {
    static std::vector<std::weak_ptr<Cable>> all;
    return all;
}

}  // namespace

CablePort::CablePort(const CableSettings& settings)
    : settings_{settings},
      parts_per_byte_{parts_per_byte(settings.bits_per_second)},
      acknowledged_(settings.packets_in_flight, 0) {}

std::int64_t CablePort::Wire::pass(std::int64_t ready, std::uint64_t parts) noexcept {
    if (ready > free_at) {
        free_at = ready;
        part = 0;
    }
    part += parts;
    free_at += static_cast<std::int64_t>(part >> part_bits);
    part &= (1U << part_bits) - 1;
    return free_at;
}

Flight CablePort::send(std::int64_t now, std::uint64_t bytes, FlightKind kind,
                       std::int64_t extra_ns) noexcept {
    const std::int64_t way = settings_.latency_ns;
    const std::uint64_t outgoing = kind == FlightKind::fetching ? 0 : bytes;
    Flight flight;
    lock_.lock();
    std::uint64_t left = outgoing;
    do {
        const std::uint64_t packet = std::min<std::uint64_t>(left, settings_.mtu);
        left -= packet;
        flight.departure =
            out_.pass(std::max(now, acknowledged_[oldest_]), parts_of(packet + settings_.header));
        flight.arrival = flight.departure + way + extra_ns;
        flight.completion = flight.arrival + way;
        if (kind == FlightKind::fetching) {
            const std::uint64_t packets =
                std::max<std::uint64_t>(1, (bytes + settings_.mtu - 1) / settings_.mtu);
            flight.completion =
                in_.pass(flight.arrival, parts_of(bytes + packets * settings_.header)) + way;
        } else if (kind == FlightKind::unreliable) {
            flight.completion = flight.departure;
        }
        // Nobody acknowledges what is unreliable: it leaves the window when it has left the port.
        acknowledged_[oldest_] = flight.completion;
        if (++oldest_ == acknowledged_.size()) oldest_ = 0;
    } while (left > 0);
    lock_.unlock();
    return flight;
}

std::shared_ptr<Cable> Cable::open(const Mode& mode) {
    const std::lock_guard guard{links_mutex};
    auto& all = cables();
    std::erase_if(all, [](const auto& cable) { return cable.expired(); });
    for (const auto& known : all) {
        // A child made by fork has no engine thread: it makes its own link.
        if (auto cable = known.lock();
            cable && cable->mode == mode && cable->process_ == getpid()) {
            return cable;
        }
    }
    auto cable = std::make_shared<Cable>(mode);
    all.push_back(cable);
    return cable;
}

void Cable::approach_death() noexcept {
    if (operations_.fetch_add(1, std::memory_order_relaxed) + 1 != mode.faults.die) return;
    base::log_line(base::LogLevel::warn, "soft",
                   "mode faulty: this process kills itself now, at the operation that die= names");
    kill(getpid(), SIGKILL);
}

Cable::Cable(const Mode& chosen) : mode{chosen}, port{chosen.cable}, process_{getpid()} {}

}  // namespace millrace::soft
