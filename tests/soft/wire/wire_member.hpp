// A process on the wire, for tests of the port: in this process, or as the child "wire_member",
// which is told line by line what to do. Addresses are of the loopback, and this test program's
// own, as others run meanwhile.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "support/child_process.hpp"
#include "system/cable_time.hpp"
#include "wire/wire_port.hpp"

namespace millrace::test {

/// 127.x.y.n, with x and y of this process.
[[nodiscard]] inline std::uint32_t own_loopback(std::uint8_t n) {
    const auto pid = static_cast<std::uint32_t>(getpid());
    return 127U << 24 | (100 + (pid >> 8) % 100) << 16 | (pid & 0xff) << 8 | n;
}
[[nodiscard]] inline soft::WireChoice named(const soft::IpAddress& ip, std::uint16_t port = 0) {
    return {soft::WireChoice::Kind::named, {ip, port}};
}

/// A whole packet from its BTH on: RC SEND_ONLY to that queue pair, with the text padded by blanks.
[[nodiscard]] inline std::vector<std::uint8_t> packet_with(std::uint32_t qpn, std::string text) {
    text.resize((text.size() + 3) / 4 * 4, ' ');
    std::vector<std::uint8_t> bytes(12 + text.size());
    bytes[0] = 0x04;
    bytes[2] = bytes[3] = 0xff;
    bytes[5] = static_cast<std::uint8_t>(qpn >> 16);
    bytes[6] = static_cast<std::uint8_t>(qpn >> 8);
    bytes[7] = static_cast<std::uint8_t>(qpn);
    std::memcpy(bytes.data() + 12, text.data(), text.size());
    return bytes;
}

/// Notes what arrives.
class Inbox final : public soft::WireReceiver {
  public:
    void arrived(const soft::WirePacket& packet) noexcept override {
        const std::lock_guard guard{mutex_};
        std::string text{packet.bytes.begin() + 12, packet.bytes.end()};
        text.erase(text.find_last_not_of(' ') + 1);
        texts_.push_back(std::move(text));
        source_ = packet.from;
    }
    bool settled(std::int64_t, Answers) noexcept override {
        const std::lock_guard guard{mutex_};
        ++batches_;
        news_.notify_all();
        return false;
    }
    /// What has come, when it is at least `count`, or nothing more for a long time.
    [[nodiscard]] std::vector<std::string> wait_for(std::size_t count) {
        std::unique_lock lock{mutex_};
        news_.wait_for(lock, patience, [&] { return texts_.size() >= count; });
        return texts_;
    }
    [[nodiscard]] std::size_t count() {
        const std::lock_guard guard{mutex_};
        return texts_.size();
    }
    [[nodiscard]] std::size_t batches() {
        const std::lock_guard guard{mutex_};
        return batches_;
    }
    [[nodiscard]] soft::UdpAddress source() {
        const std::lock_guard guard{mutex_};
        return source_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable news_;
    std::vector<std::string> texts_;
    soft::UdpAddress source_{};
    std::size_t batches_ = 0;
};

/// Composes a packet; sent at the next flush.
[[nodiscard]] inline bool compose(soft::WireRoute& route, std::uint32_t qpn,
                                  const std::string& text) {
    const auto bytes = packet_with(qpn, text);
    soft::WireOutlet outlet{route};
    std::uint8_t* const room = outlet.begin(bytes.size());
    if (room == nullptr) return false;
    std::copy(bytes.begin(), bytes.end(), room);
    outlet.commit();
    return true;
}

inline void send_text(soft::WirePort& port, const soft::UdpAddress& to, std::uint32_t qpn,
                      const std::string& text) {
    const auto route = port.route(to);
    static_cast<void>(compose(*route, qpn, text));
    port.flush();
}

/// A port with one queue pair.
struct OnWire {
    explicit OnWire(const soft::IpAddress& ip, soft::UdpAddress from = {})
        : OnWire{named(ip), from} {}
    explicit OnWire(const soft::WireChoice& choice, soft::UdpAddress from = {})
        : port{soft::WirePort::open(choice)}, qpn{port->slot().value_or(5) << 12 | 7} {
        added = port->add(qpn, inbox, from);
    }
    ~OnWire() { port->remove(qpn); }
    OnWire(const OnWire&) = delete;
    OnWire& operator=(const OnWire&) = delete;

    void send_to(const OnWire& other, const std::string& text) {
        send_text(*port, other.port->own(), other.qpn, text);
    }

    Inbox inbox;
    std::shared_ptr<soft::WirePort> port;
    std::uint32_t qpn;
    bool added = false;
};

/// The child "wire_member" at an address.
struct WireMember {
    explicit WireMember(const soft::IpAddress& ip)
        : address{ip, soft::public_wire_port},
          process{ChildProcess::start("wire_member", {ip.words()})} {}
    /// "slot N", "private PORT" or an error. Once.
    [[nodiscard]] std::string hears_where_it_is() {
        const std::string line = process.read_line().value_or("nothing");
        if (line.starts_with("slot ")) {
            slot = static_cast<std::uint32_t>(std::stoul(line.substr(5)));
        }
        return line;
    }
    [[nodiscard]] std::uint32_t qpn() const { return slot << 12 | 7; }
    /// The text of the next packet that it got.
    [[nodiscard]] std::string next() { return process.read_line().value_or("nothing"); }

    soft::UdpAddress address;
    ChildProcess process;
    std::uint32_t slot = 0;
};

}  // namespace millrace::test
