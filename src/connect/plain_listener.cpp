#include "millrace/connect/plain_listener.hpp"

#include <sys/socket.h>

#include "millrace/base/standard_streams.hpp"
#include "sockets.hpp"

namespace millrace::connect {

struct PlainListener::State {
    Listening listening;
};

PlainListener::PlainListener(const Address& address) : state_{new State{listen_on(address)}} {}
PlainListener::~PlainListener() { unlink_own(state_->listening); }

const Address& PlainListener::address() const noexcept { return state_->listening.address; }
int PlainListener::descriptor() const noexcept { return state_->listening.socket.get(); }

int PlainListener::accept() const noexcept {
    const int socket = base::above_standard_streams(
        accept4(descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket >= 0) prepare_connected(socket);
    return socket;
}

std::string PlainListener::name_of_peer(int socket) const { return peer_text(socket, address()); }

}  // namespace millrace::connect
