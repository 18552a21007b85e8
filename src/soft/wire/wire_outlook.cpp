// What this host has for the wire, without taking part: look_at_wire of millrace/soft/wire.hpp.
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <cerrno>

#include "millrace/base/error.hpp"
#include "millrace/soft/wire.hpp"
#include "wire/wire_address.hpp"
#include "wire/wire_slots.hpp"

namespace millrace::soft {

WireOutlook look_at_wire() {
    WireChoice choice = wire_of_environment();
    if (choice.kind == WireChoice::Kind::off) choice = {WireChoice::Kind::automatic, {}};
    const WireInterface interface = find_wire_interface(choice);
    WireOutlook outlook;
    const std::string words = describe({interface.ip, public_wire_port});
    outlook.address = interface.ip.words();
    outlook.interface_mtu = interface.mtu;
    if (const auto mtu = wire_mtu(interface.mtu, interface.ip))
        outlook.packet_bytes = std::uint32_t{128} << *mtu;
    Descriptor socket = wire_socket({interface.ip, public_wire_port}, false);
    if (!socket) {
        if (errno != EADDRINUSE) base::throw_errno(errno, "look at the wire's port", words);
        outlook.port = WireSlots::has_members(interface.ip) ? WireOutlook::Port::shared
                                                            : WireOutlook::Port::taken;
        socket = wire_socket({interface.ip, 0}, false);
        if (!socket) base::throw_errno(errno, "look at the wire's address", outlook.address);
    }
    outlook.receive_buffer = wire_receive_buffer(socket.get());
    const int size = 1024;
    outlook.cuts = ::setsockopt(socket.get(), SOL_UDP, UDP_SEGMENT, &size, sizeof size) == 0;
    return outlook;
}

}  // namespace millrace::soft
