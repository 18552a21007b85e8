// A listener of sockets alone: who comes is accepted, and no word is said.
#include "millrace/connect/plain_listener.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "support/temporary_folder.hpp"

namespace millrace::connect {
namespace {

int connect_to(const std::string& path) {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return socket;
}

TEST(PlainListener, AcceptsWhoComesAndSaysNothing) {
    const millrace::test::TemporaryFolder folder;
    const PlainListener listener{Address::unix_socket(folder.path("door"))};
    EXPECT_EQ(listener.accept(), -1);
    EXPECT_EQ(errno, EAGAIN);
    const int peer = connect_to(folder.path("door"));
    const int socket = listener.accept();
    ASSERT_GE(socket, 0);
    char byte = 0;
    EXPECT_EQ(::recv(peer, &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(::recv(socket, &byte, 1, 0), -1);  // never blocks
    EXPECT_EQ(::send(peer, "x", 1, 0), 1);
    EXPECT_EQ(::recv(socket, &byte, 1, 0), 1);
    ::close(socket);
    ::close(peer);
}

TEST(PlainListener, ChoosesAPortAndTakesItsPathWithIt) {
    const PlainListener by_tcp{Address::tcp("127.0.0.1", 0)};
    EXPECT_NE(by_tcp.address().port(), 0);
    const millrace::test::TemporaryFolder folder;
    {
        const PlainListener first{Address::unix_socket(folder.path("door"))};
        EXPECT_THROW(PlainListener{Address::unix_socket(folder.path("door"))}, base::Error);
    }
    EXPECT_FALSE(std::filesystem::exists(folder.path("door")));
}

}  // namespace
}  // namespace millrace::connect
