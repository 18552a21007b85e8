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
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "endpoint.hpp"
#include "support/child_process.hpp"

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

/// What each user does: a device, a queue pair, registered memory; then what it is told.
MILLRACE_CHILD(soft_user) {
    if (!become(static_cast<uid_t>(std::stoul(arguments[0])))) return 77;
    Endpoint end;
    end.word(0) = 4711;
    say(std::to_string(end.qp->qp_num) + ' ' + std::to_string(end.address()) + ' ' +
        std::to_string(end.mr->rkey) + ' ' + std::to_string(getpid()));
    while (const auto line = hear()) {
        std::istringstream words{*line};
        std::string verb;
        std::uint64_t a = 0;
        std::uint64_t b = 0;
        words >> verb >> a >> b;
        if (verb == "word") {
            say(std::to_string(end.word(0)));
        } else if (verb == "descriptors") {
            // Makes the node look at who has connected.
            Endpoint another;
            say(std::to_string(open_descriptors()));
        } else if (verb == "connect") {
            say(std::to_string(end.connect(static_cast<std::uint32_t>(a))));
        } else if (verb == "write") {  // address key
            const int error = end.write(1, 8, 8, a, static_cast<std::uint32_t>(b));
            const auto wc = end.complete();
            say(std::to_string(error) + ' ' + (wc ? std::to_string(wc->status) : "none"));
        } else if (verb == "look_into") {  // pid
            const std::string folder = "/proc/" + std::to_string(a) + "/fd";
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
            say(std::to_string(opened != nullptr ? 1 : 0) + ' ' + std::to_string(reached));
        } else if (verb == "copy") {  // pid address
            std::uint64_t word = 0;
            const iovec here{&word, sizeof word};
            const iovec there{reinterpret_cast<void*>(b), sizeof word};
            const bool read = process_vm_readv(static_cast<pid_t>(a), &here, 1, &there, 1, 0) >= 0;
            const bool written =
                process_vm_writev(static_cast<pid_t>(a), &here, 1, &there, 1, 0) >= 0;
            say(read || written ? "reached" : "refused");
        } else if (verb == "fill") {  // user number: as many connections as there is room for
            const char* const fabric = std::getenv("MILLRACE_FABRIC");
            int last = 0;
            for (int i = 0; i < 100'000 && last >= 0; ++i) {
                last =
                    connect_to_node(static_cast<uid_t>(a), fabric != nullptr ? fabric : "default",
                                    static_cast<unsigned>(b));
                if (last >= 0) close(last);  // it stays in the queue all the same
            }
            say(last < 0 && errno == EAGAIN ? "full" : "there is room");
        } else if (verb == "crowd") {  // user number: many connections, kept
            int connected = 0;
            const char* const fabric = std::getenv("MILLRACE_FABRIC");
            for (int i = 0; i < 100; ++i) {
                connected +=
                    connect_to_node(static_cast<uid_t>(a), fabric != nullptr ? fabric : "default",
                                    static_cast<unsigned>(b)) >= 0;
            }
            say(std::to_string(connected));
        }
    }
    return 0;
}

struct User {
    explicit User(uid_t user)
        : child{ChildProcess::start("soft_user", {std::to_string(user)},
                                    {"MILLRACE_FABRIC=two-users-" + std::to_string(getpid())})} {
        std::istringstream line{child.read_line().value_or("")};
        line >> qpn >> address >> rkey >> pid;
    }
    std::string ask(const std::string& command) {
        return child.write_line(command) ? child.read_line().value_or("gone") : "gone";
    }
    ChildProcess child;
    std::uint32_t qpn = 0;
    std::uint64_t address = 0;
    std::uint32_t rkey = 0;
    pid_t pid = 0;
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
    EXPECT_EQ(one.ask("write " + std::to_string(other.address) + ' ' + std::to_string(other.rkey)),
              "0 " + std::to_string(IBV_WC_RETRY_EXC_ERR));
    EXPECT_EQ(other.ask("word"), "4711");
}

TEST_F(TwoUsers, CannotLookIntoEachOthersNodeOrMemory) {
    User one{one_user};
    User same{one_user};
    User other{other_user};
    ASSERT_NE(other.qpn, 0U);
    EXPECT_EQ(other.ask("look_into " + std::to_string(one.pid)), "0 0");
    EXPECT_EQ(other.ask("copy " + std::to_string(one.pid) + ' ' + std::to_string(one.address)),
              "refused");
    EXPECT_EQ(one.ask("word"), "4711");
    // The same steps lead somewhere within one user, so that it is not the steps that fail.
    EXPECT_EQ(same.ask("look_into " + std::to_string(one.pid)).substr(0, 2), "1 ");
    EXPECT_NE(same.ask("look_into " + std::to_string(one.pid)), "1 0");
}

TEST_F(TwoUsers, CannotKeepEachOthersNodesFromBeingFound) {
    User one{one_user};
    User same{one_user};
    User other{other_user};
    ASSERT_NE(other.qpn, 0U);
    EXPECT_EQ(one.ask("connect " + std::to_string(same.qpn)), "0");
    // From here on `one` sleeps, and takes nobody out of its queue.
    ASSERT_EQ(other.ask("fill " + std::to_string(one_user) + " 1"), "full");
    EXPECT_EQ(same.ask("connect " + std::to_string(one.qpn)), "0");
    EXPECT_EQ(same.ask("write " + std::to_string(one.address) + ' ' + std::to_string(one.rkey)),
              "0 " + std::to_string(IBV_WC_SUCCESS));
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
