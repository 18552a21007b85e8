// See wire_port.hpp.
#include "wire/wire_port.hpp"

#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "layout/layout.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "roce/packet.hpp"
#include "system/cable_time.hpp"

namespace millrace::soft {
namespace {

/// One call takes so many datagrams at most, each of up to 64 KiB that the kernel has joined.
constexpr std::size_t most_datagrams = 8;
constexpr std::size_t longest_datagram = 65536;
/// A program whose last look is no longer ago polls.
constexpr std::int64_t polls_within = 150'000;
/// Who posts looks for answers so often: more often, and all that it posts goes in small packets.
constexpr std::int64_t answers_each = 100'000;
/// Who goes to sleep still looks so often, and is not taken for one who polls.
constexpr int most_last_looks = 8;
/// So long the socket is left to who polls: longer as it goes on, by an eighth of the time.
constexpr std::int64_t shortest_trust = 100'000;
constexpr std::int64_t longest_trust = 1'000'000;
/// What the engine takes in at most before it looks at its timers.
constexpr int most_batches = 8;
/// Until the system may take packets again.
constexpr std::int64_t retry_after = 100'000;

constexpr std::uint32_t management_queue_pair = 1;
/// Where it stands: no queue pair of a node has that place, as their numbers fill 12 bits.
constexpr std::size_t management_place = queue_pairs_per_node;

[[nodiscard]] ibv_mtu mtu_of(const WireInterface& interface) {
    if (const auto mtu = wire_mtu(interface.mtu, interface.ip)) return *mtu;
    throw base::Error{base::ErrorCode::unsupported, "turn on the wire",
                      describe({interface.ip, public_wire_port}),
                      fmt::format("the interface's MTU of {} is too small", interface.mtu),
                      fmt::format("raise it to {} or more", 256 + wire_header_bytes(interface.ip))};
}

[[nodiscard]] UdpAddress address_of(int socket) {
    if (const auto own = own_address_of(socket)) return *own;
    base::throw_errno(errno, "turn on the wire", "its socket");
}

}  // namespace

struct WirePort::Buffers {
    struct Control {
        alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))];
    };
    Mapping memory = Mapping::of_own_memory(most_datagrams * longest_datagram);
    std::array<mmsghdr, most_datagrams> messages{};
    std::array<iovec, most_datagrams> places{};
    std::array<SocketAddress, most_datagrams> sources{};
    std::array<Control, most_datagrams> controls{};
    /// Of the source that the last packet came from.
    UdpAddress source{};
    roce::Icrc check;
    /// Of packets that have come joined, as a rule each has one more than the one before it.
    std::uint16_t next_identification = 0;

    Buffers() {
        if (!memory) throw std::bad_alloc{};
        for (std::size_t i = 0; i < most_datagrams; ++i) {
            places[i] = {memory.memory() + i * longest_datagram, longest_datagram};
            messages[i].msg_hdr.msg_iov = &places[i];
            messages[i].msg_hdr.msg_iovlen = 1;
            messages[i].msg_hdr.msg_name = &sources[i];
            messages[i].msg_hdr.msg_control = controls[i].bytes;
        }
    }
    /// Of message `i`: how long each of its packets is, but for the last.
    [[nodiscard]] std::size_t size_of_packets(std::size_t i) {
        msghdr& header = messages[i].msg_hdr;
        for (cmsghdr* at = CMSG_FIRSTHDR(&header); at != nullptr; at = CMSG_NXTHDR(&header, at)) {
            if (at->cmsg_level != SOL_UDP || at->cmsg_type != UDP_GRO) continue;
            int size = 0;
            std::memcpy(&size, CMSG_DATA(at), sizeof size);
            if (size > 0) return static_cast<std::size_t>(size);
        }
        return std::max<std::size_t>(messages[i].msg_len, 1);
    }
};

std::shared_ptr<WirePort> WirePort::open() {
    const WireChoice choice = wire_of_environment();
    return choice.kind == WireChoice::Kind::off ? nullptr : open(choice);
}

std::shared_ptr<WirePort> WirePort::open(const WireChoice& choice,
                                         std::optional<std::uint32_t> slot) {
    const WireInterface interface = find_wire_interface(choice);
    std::unique_ptr<WireSlots> slots;
    Descriptor socket;
    const std::uint16_t wanted = choice.address.port;
    if (wanted == 0 || wanted == public_wire_port) {
        slots = WireSlots::join(interface.ip, slot);
    }
    if (slots == nullptr && wanted == public_wire_port) {
        base::throw_errno(EADDRINUSE, "turn on the wire",
                          describe({interface.ip, public_wire_port}),
                          "another program, another user or a RoCE device of the kernel has that "
                          "port: name another one, or none, for one that peers of Millrace find");
    }
    if (slots == nullptr && !interface.ip.is_ipv4()) {
        base::throw_errno(EADDRINUSE, "turn on the wire",
                          describe({interface.ip, public_wire_port}),
                          "another program, another user or a RoCE device of the kernel has that "
                          "port, and over IPv6 the wire has no other: free it, or name an IPv4 "
                          "address (MILLRACE_WIRE)");
    }
    if (slots == nullptr) {
        socket = wire_socket({interface.ip, wanted}, false);
        if (!socket) {
            base::throw_errno(errno, "turn on the wire", describe({interface.ip, wanted}),
                              "name another port, or another address of this host");
        }
        if (wanted == 0) {
            base::log(base::LogLevel::warn, "wire",
                      "UDP port 4791 of {} is taken, so the wire uses {}: peers of Millrace find "
                      "it, others do not",
                      describe({interface.ip, public_wire_port}),
                      describe(address_of(socket.get())));
        }
    }
    return std::make_shared<WirePort>(interface, choice, std::move(slots), std::move(socket));
}

WirePort::WirePort(const WireInterface& interface, const WireChoice& choice,
                   std::unique_ptr<WireSlots> slots, Descriptor socket)
    : interface_{interface},
      mtu_{mtu_of(interface)},
      alone_{choice.kind == WireChoice::Kind::named},
      always_{choice.always},
      slots_{std::move(slots)},
      socket_{std::move(socket)},
      own_{address_of(this->socket())},
      receive_buffer_{wire_receive_buffer(this->socket())},
      trace_{PacketTrace::from_environment()},
      buffers_{std::make_unique<Buffers>()},
      members_(management_place + 1) {
    news_.reserve(members_.size());
    owing_.reserve(members_.size());
    waiting_.make_room();
    try {
        page_ = std::make_unique<base::StatisticsPage>("wire " + describe(own_), wire_figures);
    } catch (const std::exception& error) {
        base::log(base::LogLevel::warn, "wire", "no statistics page: {}", error.what());
    }
    rest();  // who looks sees at once who has the port
    watch_ = std::make_unique<base::ForkWatch>(*this);
    engine_.reset(new WireEngine{*this, this->socket(), slots_ == nullptr ? -1 : slots_->door()});
    engine_->add(retry_);
}

WirePort::~WirePort() {
    if (usable()) rest();
}

void WirePort::become_copy() noexcept {
    usable_.store(false, std::memory_order_relaxed);
    if (engine_ != nullptr) engine_->become_copy();
    if (slots_ != nullptr) slots_->become_copy();
    socket_.close();
}

std::shared_ptr<WireRoute> WirePort::route(const UdpAddress& to) {
    const std::lock_guard guard{routes_mutex_};
    std::erase_if(routes_, [](const auto& known) { return known.second.expired(); });
    auto& known = routes_[to];
    if (auto route = known.lock()) return route;
    waiting_.make_room();
    auto route = std::make_shared<WireRoute>(exit_, to);
    known = route;
    return route;
}

WirePort::Member& WirePort::place_of(std::uint32_t qpn) noexcept {
    return members_[qpn == management_queue_pair ? management_place : index_of_qpn(qpn)];
}

WirePort::Member* WirePort::find(std::uint32_t qpn) noexcept {
    Member& member = place_of(qpn);
    return member.receiver != nullptr && member.qpn == qpn ? &member : nullptr;
}

bool WirePort::add(std::uint32_t qpn, WireReceiver& receiver, const UdpAddress& from) noexcept {
    if (!usable()) return false;
    const std::lock_guard guard{draining_};
    Member& member = place_of(qpn);
    if (member.receiver != nullptr) return false;
    // Elsewhere a device sends from a port of its choice.
    const bool by_port = interface_.is_loopback && from.ip.is_loopback();
    member = {&receiver, qpn, {from.ip, by_port ? from.port : std::uint16_t{0}}, false};
    return true;
}

void WirePort::remove(std::uint32_t qpn) noexcept {
    if (!usable()) return;  // made by fork: who drains is the parent's
    const std::lock_guard guard{draining_};
    if (Member* const member = find(qpn)) *member = {};
}

bool WirePort::drain(std::int64_t now) noexcept {
    if (const int left = last_looks_.load(std::memory_order_relaxed); left > 0) {
        last_looks_.store(left - 1, std::memory_order_relaxed);
    } else {
        polled_.store(now, std::memory_order_relaxed);
    }
    if (!draining_.try_lock()) return false;
    acknowledge(now, WireReceiver::Answers::at_once);
    // The engine, which looks by the clock, sends what a program that polls no more leaves behind.
    static_cast<void>(take_batch(now, left_alone_.load(std::memory_order_relaxed)
                                          ? WireReceiver::Answers::with_next
                                          : WireReceiver::Answers::at_once));
    draining_.unlock();
    return true;
}

void WirePort::take_answers(std::int64_t now) noexcept {
    if (now - polled_.load(std::memory_order_relaxed) < answers_each) return;
    static_cast<void>(drain(now));
    flush();
}

void WirePort::drain_whole(std::int64_t now) noexcept {
    if (!usable()) return;
    const std::lock_guard guard{draining_};
    acknowledge(now, WireReceiver::Answers::at_once);
    // More than a socket holds, while others go on sending, had not arrived before.
    constexpr int most = 64;
    for (int batches = 0; batches < most; ++batches) {
        if (take_batch(now, WireReceiver::Answers::at_once) != most_datagrams) break;
    }
}

void WirePort::acknowledge(std::int64_t now, WireReceiver::Answers answers) noexcept {
    if (owing_.empty()) return;
    owes_.store(false, std::memory_order_relaxed);
    for (Member* const member : owing_) {
        if (!std::exchange(member->owes, false)) continue;  // it was removed
        static_cast<void>(member->receiver->settled(now, answers));
    }
    owing_.clear();
}

unsigned WirePort::take_batch(std::int64_t now, WireReceiver::Answers answers) noexcept {
    if (!usable()) return 0;
    Buffers& buffers = *buffers_;
    for (mmsghdr& message : buffers.messages) {
        message.msg_hdr.msg_namelen = sizeof(SocketAddress);
        message.msg_hdr.msg_controllen = sizeof(Buffers::Control);
    }
    const base::Uncancelled held;
    base::count_system_call();
    const int count =
        ::recvmmsg(socket(), buffers.messages.data(), most_datagrams, MSG_DONTWAIT, nullptr);
    if (count <= 0) return 0;
    counts_.add(WireCount::receives);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const std::span all{reinterpret_cast<const std::uint8_t*>(buffers.places[i].iov_base),
                            buffers.messages[i].msg_len};
        const UdpAddress from = udp_address_of(buffers.sources[i]);
        const std::size_t size = buffers.size_of_packets(i);
        buffers.next_identification = 0;
        for (std::size_t at = 0; at < all.size(); at += size) {
            take(all.subspan(at, std::min(size, all.size() - at)), from, now);
        }
        counts_.add(WireCount::packets_received, (all.size() + size - 1) / size);
        counts_.add(WireCount::bytes_received, all.size());
    }
    for (Member* const member : news_) {
        member->has_news = false;
        if (!member->receiver->settled(now, answers)) continue;
        member->owes = true;
        owing_.push_back(member);
        owes_.store(true, std::memory_order_relaxed);
    }
    news_.clear();
    return static_cast<unsigned>(count);
}

void WirePort::take(std::span<const std::uint8_t> payload, const UdpAddress& from,
                    std::int64_t now) noexcept {
    if (trace_ != nullptr) trace_->write(from, own_, payload, 0);
    if (payload.size() < roce::bth_bytes + roce::icrc_bytes) {
        counts_.add(WireCount::malformed);
        return;
    }
    const std::uint32_t qpn = roce::destination_of(payload);
    Member* const member = find(qpn);
    // Before the check: it costs nothing to drop what nobody here waits for.
    if (member == nullptr || (!member->from.ip.is_none() && member->from.ip != from.ip) ||
        (member->from.port != 0 && member->from.port != from.port)) {
        counts_.add(WireCount::strays);
        join_no_more(qpn);
        return;
    }
    if (!member->receiver->goes_unchecked() && !has_right_check(payload, from)) {
        counts_.add(WireCount::bad_checks);
        return;
    }
    if (!member->has_news) {
        member->has_news = true;
        news_.push_back(member);
    }
    member->receiver->arrived({payload.first(payload.size() - roce::icrc_bytes), from, now});
}

bool WirePort::has_right_check(std::span<const std::uint8_t> payload,
                               const UdpAddress& from) noexcept {
    Buffers& buffers = *buffers_;
    if (buffers.source != from) {
        buffers.source = from;
        buffers.check = icrc_between(from, own_);
    }
    const auto bytes = payload.first(payload.size() - roce::icrc_bytes);
    const auto identification = buffers.check.check(
        bytes, roce::Icrc::get(payload.data() + bytes.size()), buffers.next_identification);
    if (!identification) return false;
    buffers.next_identification = static_cast<std::uint16_t>(*identification + 1);
    return true;
}

void WirePort::join_no_more(std::uint32_t qpn) noexcept {
    if (slots_ == nullptr || slot_of_qpn(qpn) == slots_->slot() || !joins_) return;
    joins_ = false;
    const int no = 0;
    static_cast<void>(::setsockopt(socket(), SOL_UDP, UDP_GRO, &no, sizeof no));
    base::log(base::LogLevel::info, "wire",
              "packets for another process came joined with those for {}: taken one by one from "
              "now on",
              describe(own_));
}

void WirePort::flush_now() noexcept {
    bool is_left = false;
    for (std::size_t count = waiting_.count(); count > 0; --count) {
        const auto route = waiting_.take();
        if (route == nullptr) break;
        if (!route->flush()) is_left = true;
    }
    if (is_left && usable()) engine_->expect(retry_, cable_now() + retry_after);
}

void WirePort::program_sleeps() noexcept {
    last_looks_.store(most_last_looks, std::memory_order_relaxed);
    polled_.store(0, std::memory_order_relaxed);
    if (left_alone_.load(std::memory_order_acquire) && usable()) engine_->look_again();
}

std::int64_t WirePort::look(std::int64_t now) noexcept {
    const std::int64_t polled = polled_.load(std::memory_order_relaxed);
    const bool polls = now - polled < polls_within;
    if (polls) {
        if (alone_since_ == 0) alone_since_ = now;
        left_alone_.store(true, std::memory_order_release);
        if (owes_.load(std::memory_order_relaxed) && draining_.try_lock()) {
            acknowledge(now, WireReceiver::Answers::late);
            draining_.unlock();
        }
        return now + std::clamp((now - alone_since_) / 8, shortest_trust, longest_trust);
    }
    alone_since_ = 0;
    left_alone_.store(false, std::memory_order_release);
    for (int batches = 0; batches < most_batches; ++batches) {
        if (!draining_.try_lock()) return now + shortest_trust;
        acknowledge(now, WireReceiver::Answers::late);
        const unsigned taken = take_batch(now, WireReceiver::Answers::at_once);
        draining_.unlock();
        if (taken < most_datagrams) break;
    }
    return wire_never;
}

void WirePort::answer() noexcept { slots_->admit(); }

void WirePort::round_ended(std::int64_t) noexcept {
    counts_.add(WireCount::engine_rounds);
    flush();
}

void WirePort::rest() noexcept {
    if (page_ == nullptr) return;
    std::array<std::uint64_t, wire_figures.size()> values{};
    for (std::size_t i = 0; i < wire_count_kinds; ++i) {
        values[i] = counts_.value(static_cast<WireCount>(i));
    }
    if (slots_ != nullptr) {
        values[wire_count_kinds] = slots_->slot();
        values[wire_count_kinds + 1] = slots_->leased();
    }
    page_->set(values);
}

}  // namespace millrace::soft
