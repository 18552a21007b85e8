// Two programs that exchange bytes by ordinary sockets, and wait by select() and poll(): they know
// nothing of RDMA. connection_manager_test.cpp runs them with librspreload, which makes rsockets of
// their sockets.
//
//   sockets server|client PORT
//
// Both end with status 0 when all came back as it was.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t length = 1U << 20;

void require(bool condition, const char* what) {
    if (condition) return;
    std::perror(what);
    std::exit(1);
}

std::vector<std::uint8_t> pattern() {
    std::vector<std::uint8_t> bytes(length);
    std::uint32_t state = 1;
    for (auto& byte : bytes) {
        state = state * 1'664'525 + 1'013'904'223;
        byte = static_cast<std::uint8_t>(state >> 24);
    }
    return bytes;
}

/// One waits by select(), one by poll().
void wait_for_bytes(int socket, bool by_select) {
    if (by_select) {
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(socket, &readable);
        require(select(socket + 1, &readable, nullptr, nullptr, nullptr) == 1, "select");
        return;
    }
    pollfd at{socket, POLLIN, 0};
    require(poll(&at, 1, -1) == 1, "poll");
}

std::vector<std::uint8_t> read_all(int socket, bool by_select) {
    std::vector<std::uint8_t> bytes(length);
    std::size_t got = 0;
    while (got < length) {
        wait_for_bytes(socket, by_select);
        const ssize_t count = recv(socket, bytes.data() + got, length - got, 0);
        require(count > 0, "recv");
        got += static_cast<std::size_t>(count);
    }
    return bytes;
}

void write_all(int socket, const std::vector<std::uint8_t>& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
        const ssize_t count = send(socket, bytes.data() + sent, bytes.size() - sent, 0);
        require(count > 0, "send");
        sent += static_cast<std::size_t>(count);
    }
}

void serve(const sockaddr_in& address) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    require(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
            "bind");
    require(listen(listener, 1) == 0, "listen");
    const int end = accept(listener, nullptr, nullptr);
    require(end >= 0, "accept");
    write_all(end, read_all(end, true));
    char more = 0;
    require(recv(end, &more, 1, 0) == 0, "recv of the end");
    close(end);
    close(listener);
}

void call(const sockaddr_in& address) {
    const int end = socket(AF_INET, SOCK_STREAM, 0);
    require(connect(end, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
            "connect");
    const auto sent = pattern();
    write_all(end, sent);
    require(read_all(end, false) == sent, "compare");
    require(shutdown(end, SHUT_WR) == 0, "shutdown");
    close(end);
}

}  // namespace

int main(int count, char** words) {
    require(count == 3, "sockets server|client PORT");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(words[2])));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_server = std::strcmp(words[1], "server") == 0;
    is_server ? serve(address) : call(address);
    std::printf("%s: %zu bytes as they should be\n", words[1], length);
    return 0;
}
