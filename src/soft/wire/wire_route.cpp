// See wire_route.hpp.
#include "wire/wire_route.hpp"

#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "roce/packet.hpp"
#include "wire/wire_slots.hpp"

namespace millrace::soft {
namespace {

/// The kernel's least limit of what one send may be cut into, and of its bytes.
constexpr std::uint32_t most_segments = 64;
constexpr std::uint32_t longest_send = 65'000;
/// So often it is asked whether runs arrive.
constexpr std::uint64_t packets_per_judgement = 512;

[[nodiscard]] bool says_later(int error) noexcept {
    return error == EAGAIN || error == ENOBUFS || error == ENOMEM;
}
/// A device, or the kernel, that cannot cut one send into packets.
[[nodiscard]] bool says_no_segments(int error) noexcept {
    return error == EIO || error == EINVAL || error == EOPNOTSUPP || error == EMSGSIZE;
}

[[nodiscard]] std::string_view remedy_of(int error) noexcept {
    switch (error) {
        case EMSGSIZE:
            return "the path takes no packets so long: lower the MTU of the queue pairs, or raise "
                   "that of the interfaces";
        case EPERM: return "a firewall forbids it: let it pass UDP there";
        case ENETUNREACH:
        case EHOSTUNREACH: return "look at this host's routes (ip route get)";
        default: return "look at this host's addresses and interfaces (ip address)";
    }
}

}  // namespace

roce::Icrc icrc_between(const UdpAddress& from, const UdpAddress& to) noexcept {
    return roce::Icrc{{from.ip.bytes(), to.ip.bytes(), from.port, to.port}};
}

void WaitingRoutes::make_room() {
    std::vector<std::shared_ptr<WireRoute>> larger;
    const std::lock_guard guard{lock_};
    ++room_;
    if (room_ <= routes_.capacity()) return;
    larger.reserve(2 * room_);
    for (auto& route : routes_) larger.push_back(std::move(route));
    routes_.swap(larger);
}

void WaitingRoutes::add(std::shared_ptr<WireRoute> route) noexcept {
    const std::lock_guard guard{lock_};
    routes_.push_back(std::move(route));
    count_.store(routes_.size(), std::memory_order_relaxed);
}

std::shared_ptr<WireRoute> WaitingRoutes::take() noexcept {
    const std::lock_guard guard{lock_};
    if (routes_.empty()) return nullptr;
    auto route = std::move(routes_.back());
    routes_.pop_back();
    count_.store(routes_.size(), std::memory_order_relaxed);
    return route;
}

WireRoute::WireRoute(const WireExit& exit, const UdpAddress& to)
    : exit_{exit}, to_{to}, arena_{Mapping::of_own_memory(arena_bytes)} {
    if (!arena_) throw std::bad_alloc{};
    lanes_.reserve(wire_slots);
}

std::uint32_t WireRoute::lane_to(std::uint32_t qpn) noexcept {
    const std::uint32_t slot = to_.port == public_wire_port ? slot_of_qpn(qpn) : 0;
    if (last_lane_ < lanes_.size() && lanes_[last_lane_].slot == slot) return last_lane_;
    for (last_lane_ = 0; last_lane_ < lanes_.size(); ++last_lane_) {
        if (lanes_[last_lane_].slot == slot) return last_lane_;
    }
    add_lane(slot);
    return last_lane_;
}

void WireRoute::add_lane(std::uint32_t slot) noexcept {
    Lane lane{slot, Descriptor{}, exit_.socket, exit_.own, roce::Icrc{}};
    if (exit_.joins && to_.port == public_wire_port) {
        // Where no descriptor is left, what is joined with others' packets is lost and sent again.
        lane.own_socket = wire_socket({exit_.own.ip, 0}, false);
        const auto own = lane.own_socket ? own_address_of(lane.own_socket.get()) : std::nullopt;
        if (own) {
            lane.socket = lane.own_socket.get();
            lane.from = *own;
            const int least = 1;  // nobody sends anything there
            static_cast<void>(
                ::setsockopt(lane.socket, SOL_SOCKET, SO_RCVBUF, &least, sizeof least));
        }
    }
    lane.icrc = icrc_between(lane.from, to_);
    lanes_.push_back(std::move(lane));  // there is room for all
}

std::uint8_t* WireRoute::begin(std::size_t bytes) noexcept {
    if (!exit_.usable.load(std::memory_order_relaxed)) return nullptr;
    const std::size_t all = bytes + roce::icrc_bytes;
    if (used_ + all > arena_bytes || run_count_ == most_runs || is_full(all)) {
        if (!send_all()) {
            wait_for_flush();
            return nullptr;
        }
    }
    begun_ = all;
    return reinterpret_cast<std::uint8_t*>(arena_.memory()) + used_;
}

bool WireRoute::is_full(std::size_t bytes) const noexcept {
    return run_count_ > first_run_ && runs_[run_count_ - 1].bytes + bytes > longest_send;
}

bool WireRoute::continues(const Run& run, std::uint32_t lane, std::size_t bytes) const noexcept {
    return lane == run.lane && bytes <= run.size && run.packets * run.size == run.bytes &&
           run.packets < most_segments && run.bytes + bytes <= longest_send && segments_;
}

void WireRoute::commit(Check check) noexcept {
    const auto all = static_cast<std::uint32_t>(begun_);
    auto* const packet = reinterpret_cast<std::uint8_t*>(arena_.memory()) + used_;
    const std::uint32_t lane = lane_to(roce::destination_of({packet, all}));
    const bool is_next = run_count_ > first_run_ && continues(runs_[run_count_ - 1], lane, all);
    if (!is_next) runs_[run_count_++] = {static_cast<std::uint32_t>(used_), 0, all, 0, lane};
    Run& run = runs_[run_count_ - 1];
    const std::size_t covered = all - roce::icrc_bytes;
    const std::uint32_t icrc =
        check == Check::left_out
            ? no_icrc
            : lanes_[lane].icrc.of({packet, covered}, static_cast<std::uint16_t>(run.packets));
    roce::Icrc::put(icrc, packet + covered);
    run.bytes += all;
    ++run.packets;
    used_ += all;
    wait_for_flush();
}

void WireRoute::wait_for_flush() noexcept {
    if (is_waiting_) return;
    is_waiting_ = true;
    exit_.waiting.add(shared_from_this());
}

bool WireRoute::flush() noexcept {
    const std::lock_guard guard{lock_};
    is_waiting_ = false;
    if (send_all()) return true;
    wait_for_flush();
    return false;
}

void WireRoute::see_off() noexcept {
    const std::lock_guard guard{lock_};
    if (!send_all()) wait_for_flush();
}

bool WireRoute::send_all() noexcept {
    if (!exit_.usable.load(std::memory_order_relaxed)) return false;
    const base::Uncancelled held;
    while (first_run_ < run_count_) {
        const int sent = send_some();
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && says_later(errno)) return false;
        if (sent < 0) give_up_first(errno);
        for (int i = 0; i < sent; ++i) note_sent(runs_[first_run_++]);
    }
    first_run_ = run_count_ = used_ = 0;
    if (sent_ >= packets_per_judgement) judge_segments();
    return true;
}

void WireRoute::judge_segments() noexcept {
    const bool in_vain = 2 * repeated_.exchange(0, std::memory_order_relaxed) > sent_;
    sent_ = 0;
    if (!in_vain || !std::exchange(segments_, false)) return;
    base::log(base::LogLevel::warn, "wire",
              "most packets from {} to {} had to be sent again; from now on each goes by a send of "
              "its own",
              describe(exit_.own), describe(to_));
}

int WireRoute::send_some() noexcept {
    struct Control {
        alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(std::uint16_t))];
    };
    std::array<mmsghdr, most_runs> messages;
    std::array<iovec, most_runs> places;
    std::array<Control, most_runs> controls;
    SocketAddress to = socket_address(to_);
    const Lane& lane = lanes_[runs_[first_run_].lane];
    std::size_t count = 0;
    for (std::size_t i = 0; first_run_ + i < run_count_; ++i) {
        const Run& run = runs_[first_run_ + i];
        if (lanes_[run.lane].socket != lane.socket) break;
        ++count;
        places[i] = {arena_.memory() + run.offset, run.bytes};
        msghdr& message = messages[i].msg_hdr;
        message = {};
        message.msg_name = &to.any;
        message.msg_namelen = to.size();
        message.msg_iov = &places[i];
        message.msg_iovlen = 1;
        if (run.packets == 1) continue;
        message.msg_control = controls[i].bytes;
        message.msg_controllen = sizeof controls[i].bytes;
        cmsghdr* const cut = CMSG_FIRSTHDR(&message);
        cut->cmsg_level = SOL_UDP;
        cut->cmsg_type = UDP_SEGMENT;
        cut->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
        const auto size = static_cast<std::uint16_t>(run.size);
        std::memcpy(CMSG_DATA(cut), &size, sizeof size);
    }
    base::count_system_call();
    exit_.counts.add(WireCount::sends);
    return ::sendmmsg(lane.socket, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
}

void WireRoute::note_sent(const Run& run) noexcept {
    sent_ += run.packets;
    exit_.counts.add(WireCount::packets_sent, run.packets);
    exit_.counts.add(WireCount::bytes_sent, run.bytes);
    if (exit_.trace == nullptr) return;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(arena_.memory()) + run.offset;
    for (std::uint32_t i = 0; i < run.packets; ++i) {
        const std::uint32_t at = i * run.size;
        exit_.trace->write(lanes_[run.lane].from, to_,
                           {bytes + at, std::min(run.size, run.bytes - at)},
                           static_cast<std::uint16_t>(i));
    }
}

/// What is lost here is sent again by who has it still, as what is lost elsewhere.
void WireRoute::give_up_first(int error) noexcept {
    const Run& run = runs_[first_run_++];
    if (run.packets == 1 || !says_no_segments(error)) {
        exit_.counts.add(WireCount::losses, run.packets);
    } else if (send_one_by_one(run)) {
        segments_ = false;
        return;
    }  // else something else is wrong, as an address that is gone
    if (std::exchange(told_, error) == error) return;
    base::log(base::LogLevel::warn, "wire", "packets from {} to {} are lost here: {}; {}",
              describe(exit_.own), describe(to_), base::describe_errno(error), remedy_of(error));
}

bool WireRoute::send_one_by_one(const Run& run) noexcept {
    bool any = false;
    const SocketAddress to = socket_address(to_);
    const Lane& lane = lanes_[run.lane];
    for (std::uint32_t at = 0; at < run.bytes; at += run.size) {
        const Run part{run.offset + at, std::min(run.size, run.bytes - at), run.size, 1, run.lane};
        auto* const packet = reinterpret_cast<std::uint8_t*>(arena_.memory()) + part.offset;
        const std::size_t covered = part.bytes - roce::icrc_bytes;
        if (roce::Icrc::get(packet + covered) != no_icrc) {
            roce::Icrc::put(lane.icrc.of({packet, covered}), packet + covered);
        }
        base::count_system_call();
        exit_.counts.add(WireCount::sends);
        if (::sendto(lane.socket, packet, part.bytes, MSG_DONTWAIT, &to.any, to.size()) < 0) {
            exit_.counts.add(WireCount::losses);
        } else {
            note_sent(part);
            any = true;
        }
    }
    return any;
}

}  // namespace millrace::soft
