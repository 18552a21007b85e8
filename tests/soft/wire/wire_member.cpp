// The child of wire_member.hpp.
#include "soft/wire/wire_member.hpp"

#include <sstream>

#include "millrace/base/error.hpp"

namespace millrace::test {
namespace {

/// Says every text that arrives.
class Speaker final : public soft::WireReceiver {
  public:
    void arrived(const soft::WirePacket& packet) noexcept override {
        std::string text{packet.bytes.begin() + 12, packet.bytes.end()};
        text.erase(text.find_last_not_of(' ') + 1);
        say(text);
    }
    bool settled(std::int64_t, Answers) noexcept override { return false; }
};

}  // namespace

/// Joins the wire at an address, says where, and what arrives. "send IP QPN TEXT": sends.
MILLRACE_CHILD(wire_member) {
    std::shared_ptr<soft::WirePort> port;
    try {
        port = soft::WirePort::open(named(soft::IpAddress::parse(arguments.at(0)).value()));
    } catch (const base::Error& error) {
        say(error.cause() + "; " + error.remedy());
        return 1;
    }
    Speaker speaker;
    const std::uint32_t slot = port->slot().value_or(0);
    if (!port->add(slot << 12 | 7, speaker, {})) return 2;
    say(port->is_private() ? "private " + std::to_string(port->own().port)
                           : "slot " + std::to_string(slot));
    while (const auto line = hear()) {
        std::istringstream words{*line};
        std::string send;
        std::string text;
        std::string ip;
        std::uint32_t qpn = 0;
        words >> send >> ip >> qpn >> text;
        send_text(*port, {soft::IpAddress::parse(ip).value(), soft::public_wire_port}, qpn, text);
    }
    port->remove(slot << 12 | 7);
    return 0;
}

}  // namespace millrace::test
