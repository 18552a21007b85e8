#include "rendezvous.hpp"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

#include "millrace/base/error.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::tools::demo {
namespace {

std::string port_file(const TransportOptions& options) { return options.rendezvous + ".port"; }

}  // namespace

void tell_port(const TransportOptions& options, std::uint16_t port) {
    const std::string temporary = port_file(options) + ".new";
    std::ofstream{temporary} << port << '\n';
    if (std::rename(temporary.c_str(), port_file(options).c_str()) != 0) {
        base::throw_errno(errno, "tell the port", port_file(options));
    }
}

void forget_port(const TransportOptions& options) noexcept {
    static_cast<void>(std::remove(port_file(options).c_str()));
}

std::optional<std::uint16_t> told_port(const TransportOptions& options) {
    std::uint16_t port = 0;
    if (std::ifstream{port_file(options)} >> port) return port;
    return std::nullopt;
}

connect::Address address_to_listen(const TransportOptions& options) {
    return options.has_hosts ? connect::Address::tcp(options.host, 0)
                             : connect::Address::unix_socket(options.rendezvous);
}

void tell_listening(const TransportOptions& options, const connect::Address& address) {
    if (options.has_hosts) tell_port(options, address.port());
}

connect::Address address_to_connect(const TransportOptions& options) {
    if (!options.has_hosts) return address_to_listen(options);
    std::optional<std::uint16_t> port;
    base::NapParker parker;
    const base::Status status = base::wait_until(
        [&] {
            port = told_port(options);
            return port.has_value();
        },
        options.deadline, base::WaitPolicy::blocking(), parker);
    if (status != base::Status::ok) {
        throw base::Error{base::ErrorCode::timed_out, "connect to the consumer", options.host,
                          "it does not say on which port it listens", ""};
    }
    return connect::Address::tcp(options.host, *port);
}

}  // namespace millrace::tools::demo
