// A socket to another process, for tests that start one as a child.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pair.hpp"
#include "support/child_process.hpp"

namespace millrace::stream {

inline Mode mode_of(const std::string& name) {
    for (const Mode mode : {Mode::dynamic, Mode::direct, Mode::indirect}) {
        if (name == name_of(mode)) return mode;
    }
    throw std::runtime_error{"no mode " + name};
}

/// "MODE" or "MODE/seqpacket".
inline SocketOptions options_of(const std::string& chosen) {
    SocketOptions options;
    options.mode = mode_of(chosen.substr(0, chosen.find('/')));
    if (chosen.ends_with("/seqpacket")) options.type = Type::seqpacket;
    options.ring_bytes = 64 << 10;
    return options;
}

/// For children: listens in the mode and type of the first argument, says where, and accepts one
/// socket.
inline Socket accept_one(const std::vector<std::string>& arguments) {
    Listener listener = Listener::listen(connect::Address::parse("127.0.0.1:0"),
                                         options_of(arguments.empty() ? "dynamic" : arguments[0]));
    test::say(listener.address().to_string());
    return listener.accept(patience());
}

/// A child that listens, and the socket to it. The child's first line is its address.
struct Remote {
    test::ChildProcess child;
    Socket socket;

    static Remote start(std::string_view name, Mode mode, Type type = Type::stream) {
        std::string chosen{name_of(mode)};
        if (type == Type::seqpacket) chosen += "/seqpacket";
        test::ChildProcess process = test::ChildProcess::start(name, {chosen});
        const auto address = process.read_line();
        if (!address) throw std::runtime_error{"the child did not listen"};
        Socket made = connect(connect::Address::parse(*address), options_of(chosen), patience());
        return {std::move(process), std::move(made)};
    }
};

}  // namespace millrace::stream
