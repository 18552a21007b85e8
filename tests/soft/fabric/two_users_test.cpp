// Two ordinary users of one machine, each with a device of the same fabric's name: neither reaches
// the other's fabric, by verbs or by hand (docs/threat-model.md). Needs root, to be two users.
#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "soft/remote_endpoint.hpp"

namespace millrace::test {
namespace {

constexpr uid_t one_user = 65534;
constexpr uid_t other_user = 65533;

bool become(uid_t user) {
    // Dumpable, as a program is that was started by that user: then only the user counts.
    return setgid(user) == 0 && setuid(user) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0;
}

int connect_to_node(uid_t user, const std::string& fabric, unsigned number) {
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name =
        "millrace/" + std::to_string(user) + "/" + fabric + "/" + std::to_string(number);
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0) return socket;
    const int cause = errno;
    ::close(socket);
    errno = cause;
    return -1;
}

std::size_t open_descriptors() {
    std::size_t count = 0;
    DIR* const folder = opendir("/proc/self/fd");
    if (folder == nullptr) return 0;
    while (readdir(folder) != nullptr) ++count;
    closedir(folder);
    return count;
}

/// Whether the folder of that process's descriptors can be opened, and how many of them.
std::string look_into(pid_t pid) {
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
    DIR* const opened = opendir(folder.c_str());
    if (opened != nullptr) closedir(opened);
    int reached = 0;
    for (int number = 0; number < 256; ++number) {
        const std::string path = folder + '/' + std::to_string(number);
        const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        close(file);
        ++reached;
    }
    return std::to_string(opened != nullptr ? 1 : 0) + ' ' + std::to_string(reached);
}

/// A word of that process's memory, out of it and into it.
std::string copy(pid_t pid, std::uint64_t address) {
    std::uint64_t word = 0;
    const iovec here{&word, sizeof word};
    const iovec there{reinterpret_cast<void*>(address), sizeof word};
    const bool read = process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0;
    const bool written = process_vm_writev(pid, &here, 1, &there, 1, 0) >= 0;
    return read || written ? "reached" : "refused";
}

/// What each user does: a device, a queue pair, registered memory; then what it is told.
MILLRACE_CHILD(soft_user) {
    if (!become(static_cast<uid_t>(std::stoul(arguments[0])))) return 77;
    Endpoint end;
    end.word(0) = 4711;
    const char* const set = std::getenv("MILLRACE_FABRIC");
    const std::string fabric = set != nullptr ? set : "default";
    serve_endpoint(end, [&](const EndpointCommand& command) -> std::optional<std::string> {
        const auto& [verb, a, b, c, d, e] = command;
        const auto user = static_cast<uid_t>(a);
        const auto node = static_cast<unsigned>(b);
        if (verb == "word") return std::to_string(end.word(0));
        if (verb == "descriptors") {
            // Makes the node look at who has connected.
            Endpoint another;
            return std::to_string(open_descriptors());
        }
        if (verb == "look_into") return look_into(static_cast<pid_t>(a));
        if (verb == "copy") return copy(static_cast<pid_t>(a), b);
        if (verb == "fill_queue") {  // as many connections as there is room for
            int last = 0;
            for (int i = 0; i < 100'000 && last >= 0; ++i) {
                last = connect_to_node(user, fabric, node);
                if (last >= 0) close(last);  // it stays in the queue all the same
            }
            return last < 0 && errno == EAGAIN ? "full" : "there is room";
        }
        if (verb == "crowd") {  // many connections, kept
            int connected = 0;
            for (int i = 0; i < 100; ++i) connected += connect_to_node(user, fabric, node) >= 0;
            return std::to_string(connected);
        }
        return std::nullopt;
    });
    return 0;
}

struct User : RemoteEndpoint {
    explicit User(uid_t user)
        : RemoteEndpoint{
              ChildProcess::start("soft_user", {std::to_string(user)},
                                  {"MILLRACE_FABRIC=two-users-" + std::to_string(getpid())})} {}
    /// The status with which a WRITE over the first word of `target` completes.
    int write_over(const User& target) {
        if (ask("write 1 8 8 " + std::to_string(target.address) + ' ' +
                std::to_string(target.rkey)) != "0") {
            return -1;
        }
        std::istringstream words{ask("complete")};
        std::uint64_t id = 0;
        int status = -1;
        words >> id >> status;
        return status;
    }
};

class TwoUsers : public testing::Test {
  protected:
    void SetUp() override {
        if (geteuid() != 0) GTEST_SKIP() << "only root can be two users";
    }
};

TEST_F(TwoUsers, HaveFabricsOfTheirOwnUnderTheSameName) {
    User one{one_user};
    User other{other_user};
    ASSERT_NE(one.qpn, 0U);
    EXPECT_EQ(one.qpn, other.qpn) << "each is the first node of its fabric";
    // To itself is all that such a number can lead to: never to the other one's queue pair.
    EXPECT_EQ(one.ask("connect " + std::to_string(one.qpn + (2U << 12))), "0");
    EXPECT_EQ(one.write_over(other), IBV_WC_RETRY_EXC_ERR);
    EXPECT_EQ(other.ask("word"), "4711");
}

TEST_F(TwoUsers, CannotLookIntoEachOthersNodeOrMemory) {
    User one{one_user};
    User same{one_user};
    User other{other_user};
    ASSERT_NE(other.qpn, 0U);
    EXPECT_EQ(other.ask("look_into " + std::to_string(one.child.pid())), "0 0");
    EXPECT_EQ(
        other.ask("copy " + std::to_string(one.child.pid()) + ' ' + std::to_string(one.address)),
        "refused");
    EXPECT_EQ(one.ask("word"), "4711");
    // The same steps lead somewhere within one user, so that it is not the steps that fail.
    EXPECT_EQ(same.ask("look_into " + std::to_string(one.child.pid())).substr(0, 2), "1 ");
    EXPECT_NE(same.ask("look_into " + std::to_string(one.child.pid())), "1 0");
}

TEST_F(TwoUsers, CannotKeepEachOthersNodesFromBeingFound) {
    User one{one_user};
    User same{one_user};
    User other{other_user};
    ASSERT_NE(other.qpn, 0U);
    EXPECT_EQ(one.ask("connect " + std::to_string(same.qpn)), "0");
    // From here on `one` sleeps, and takes nobody out of its queue.
    ASSERT_EQ(other.ask("fill_queue " + std::to_string(one_user) + " 1"), "full");
    EXPECT_EQ(same.ask("connect " + std::to_string(one.qpn)), "0");
    EXPECT_EQ(same.write_over(one), IBV_WC_SUCCESS);
    EXPECT_EQ(one.ask("word"), "0") << "it has been written";
}

TEST_F(TwoUsers, CannotFillEachOthersDescriptorTable) {
    User one{one_user};
    User other{other_user};
    const std::size_t before = std::stoul(one.ask("descriptors"));
    ASSERT_EQ(other.ask("crowd " + std::to_string(one_user) + " 1"), "100");
    const std::size_t after = std::stoul(one.ask("descriptors"));
    EXPECT_LT(after, before + 50);
    EXPECT_EQ(one.ask("word"), "4711");
}

}  // namespace
}  // namespace millrace::test
