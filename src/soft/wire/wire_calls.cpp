// See wire_calls.hpp.
#include "wire/wire_calls.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "fabric/node.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/soft/wire.hpp"
#include "process/context.hpp"
#include "process/port.hpp"
#include "process/process.hpp"
#include "system/cable_time.hpp"
#include "wire/wire_port.hpp"

namespace millrace::soft {
namespace {

struct Opened {
    std::mutex mutex;
    std::weak_ptr<Process> opener;  ///< that opened the device last
};

/// Never destroyed: a program may connect after main.
[[nodiscard]] Opened& opened_wire() noexcept {
    static Opened& the_one = *new Opened;
    return the_one;
}

void give_to(Process& process, std::shared_ptr<WirePort> port) {
    std::optional<WireFacts> facts;
    if (port != nullptr) {
        facts = {port->gid(), port->interface().index, port->mtu(), port->is_alone()};
    }
    show_wire(facts);
    process.take(std::move(port));
}

}  // namespace

void give_wire(const std::shared_ptr<Process>& process, std::shared_ptr<WirePort> port) {
    // A node of this process that is there already, of a fabric that it had before.
    if (port != nullptr && port->slot() && process->node().number() % wire_slots != *port->slot()) {
        base::log(base::LogLevel::warn, "wire",
                  "fabric '{}' was open before with another number, so it has no wire now",
                  process->fabric());
        port = nullptr;
    }
    give_to(*process, std::move(port));
    const std::lock_guard guard{opened_wire().mutex};
    opened_wire().opener = process;
}

bool turn_wire_on(const ibv_gid& at) {
    const char* const set = std::getenv("MILLRACE_WIRE");
    const bool says_itself = set != nullptr && *set != '\0';
    const bool says_off = says_itself && parse_wire(set).kind == WireChoice::Kind::off;
    const auto address = udp_address_of(at);
    if (!says_itself) turn_wire_on_at(address ? address->ip : IpAddress{});
    const std::lock_guard guard{opened_wire().mutex};
    if (const auto process = opened_wire().opener.lock();
        process != nullptr && process->node().usable()) {
        if (process->wire() == nullptr && !says_off) {
            const std::uint32_t slot = process->node().number() % wire_slots;
            give_to(*process, WirePort::open(wire_of_environment(), slot));
        }
        return process->wire() != nullptr;
    }
    return !says_off;
}

std::string wire_in_words() {
    const WireChoice choice = wire_of_environment();
    const char* const mark = choice.always ? ",always" : "";
    switch (choice.kind) {
        case WireChoice::Kind::off: return {};
        case WireChoice::Kind::automatic: return std::string{"auto"} + mark;
        case WireChoice::Kind::named: break;
    }
    const IpAddress& ip = choice.address.ip;
    std::string words;
    if (!ip.is_ipv4()) {
        words.append("[").append(ip.words()).append("]");
    } else {
        words = choice.address.port == 0 ? ip.words() : describe(choice.address);
    }
    return words.append(mark);
}

bool wire_is_always() { return wire_of_environment().always; }
bool may_leave_out_icrc() { return !wire_of_environment().checked; }

void check_wire(std::string_view text) { static_cast<void>(parse_wire(text)); }

std::optional<WireAddress> wire_at(ibv_context* context, const ibv_gid& local) noexcept {
    const WirePort* const port = context_of(context)->process->wire();
    if (port == nullptr || !port->usable()) return std::nullopt;
    const ibv_gid address = gid_of({port->own().ip, public_wire_port});
    if (!is_empty(local) && std::memcmp(local.raw, address.raw, sizeof local.raw) != 0) {
        return std::nullopt;
    }
    const int index = index_of_gid(port->gid(), IBV_GID_TYPE_ROCE_V2);
    if (index < 0) return std::nullopt;
    return WireAddress{port->gid(), index, port->own().port};
}

void take_arrivals(ibv_context* context, bool all) noexcept {
    WirePort* const port = context_of(context)->process->wire();
    if (port == nullptr) return;
    if (all) {
        port->drain_whole(cable_now());
    } else {
        static_cast<void>(port->drain(cable_now()));
    }
    port->flush();
}

}  // namespace millrace::soft
