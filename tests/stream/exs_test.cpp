// The C face: handles, events and errors. examples/exs_copy.c, which a C compiler makes, is run,
// too.
#include "millrace/stream/exs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace {

using testing::HasSubstr;

constexpr int patience = 40'000;

std::string unused_address() {
    static int number = 0;
    return "unix:@millrace-exs-test-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

/// Both ends in one thread: their progress is made by one queue.
class Exs : public testing::TestWithParam<std::tuple<int, int>> {
  protected:
    void SetUp() override {
        const auto [type, mode] = GetParam();
        ASSERT_EQ(exs_init(EXS_VERSION), 0) << exs_last_error();
        queue = exs_qcreate(16);
        listener = exs_socket(type);
        ASSERT_EQ(exs_setmode(listener, mode), 0);
        ASSERT_EQ(exs_bind(listener, unused_address().c_str()), 0);
        ASSERT_EQ(exs_listen(listener), 0) << exs_last_error();
    }
    void TearDown() override {
        EXPECT_EQ(exs_close(listener, 0), 0);
        EXPECT_EQ(exs_qdelete(queue), 0) << exs_last_error();
    }
    exs_event_t next() {
        exs_event_t event{};
        EXPECT_EQ(exs_qdequeue(queue, &event, 1, patience), 1) << exs_last_error();
        return event;
    }
    exs_qhandle_t queue = nullptr;
    exs_shandle_t listener = nullptr;
};
std::string name_of_kind(const testing::TestParamInfo<std::tuple<int, int>>& kind) {
    const auto [type, mode] = kind.param;
    return std::string{type == SOCK_SEQPACKET ? "messages_" : "bytes_"} +
           (mode == EXS_MODE_DIRECT     ? "direct"
            : mode == EXS_MODE_INDIRECT ? "indirect"
                                        : "dynamic");
}
INSTANTIATE_TEST_SUITE_P(Of, Exs,
                         testing::Combine(testing::Values(SOCK_STREAM, SOCK_SEQPACKET),
                                          testing::Values(EXS_MODE_DYNAMIC, EXS_MODE_DIRECT,
                                                          EXS_MODE_INDIRECT)),
                         name_of_kind);

TEST_P(Exs, AnAcceptWaitsInItsQueueAndCanBeCancelled) {
    EXPECT_THAT(exs_address(listener), HasSubstr("unix:@millrace-exs-test"));
    ASSERT_EQ(exs_accept(listener, &queue, queue), 0) << exs_last_error();
    exs_event_t event{};
    EXPECT_EQ(exs_qdequeue(queue, &event, 1, 0), 0);
    EXPECT_EQ(exs_qdequeue(queue, &event, 1, 1), 0);
    EXPECT_EQ(exs_qdelete(queue), -1);
    EXPECT_EQ(errno, EBUSY);
    ASSERT_EQ(exs_cancel(listener, &queue), 0);
    event = next();
    EXPECT_EQ(event.type, EXS_EVT_ACCEPT);
    EXPECT_EQ(event.error, ECANCELED);
    EXPECT_EQ(event.ahandle, &queue);
    EXPECT_EQ(exs_cancel(listener, &queue), -1);
    EXPECT_EQ(errno, ENOENT);
}

TEST_P(Exs, CarriesBytesOfRegisteredAndPlainMemoryAndItsEnd) {
    const auto [type, mode] = GetParam();
    const std::string address = exs_address(listener);
    exs_shandle_t far = nullptr;
    // Another thread, with a queue of its own.
    std::thread peer{[&, type = type, mode = mode] {
        exs_qhandle_t mine = exs_qcreate(8);
        exs_shandle_t sock = exs_socket(type);
        ASSERT_EQ(exs_setmode(sock, mode), 0);
        ASSERT_EQ(exs_connect(sock, address.c_str(), patience, sock, mine), 0) << exs_last_error();
        exs_event_t event{};
        ASSERT_EQ(exs_qdequeue(mine, &event, 1, patience), 1);
        EXPECT_EQ(event.type, EXS_EVT_CONNECT);
        EXPECT_EQ(event.ahandle, sock);
        std::vector<char> bytes(50'000, 'x');
        exs_mhandle_t memory = exs_mregister(bytes.data(), bytes.size());
        ASSERT_NE(memory, nullptr) << exs_last_error();
        ASSERT_EQ(exs_send(sock, bytes.data() + 10, 40'000, 0, memory, &event, mine), 0)
            << exs_last_error();
        ASSERT_EQ(exs_send(sock, "plain", 5, 0, nullptr, nullptr, mine), 0) << exs_last_error();
        ASSERT_EQ(exs_shutdown(sock, SHUT_WR), 0);
        ASSERT_EQ(exs_qdequeue(mine, &event, 1, patience), 1);
        EXPECT_EQ(event.type, EXS_EVT_SEND);
        EXPECT_EQ(event.error, 0);
        EXPECT_EQ(event.ahandle, &event);
        EXPECT_EQ(event.length, 40'000U);
        ASSERT_EQ(exs_qdequeue(mine, &event, 1, patience), 1);
        EXPECT_EQ(event.length, 5U);
        EXPECT_EQ(exs_close(sock, patience), 0) << exs_last_error();
        EXPECT_EQ(exs_mderegister(memory), 0);
        EXPECT_EQ(exs_qdelete(mine), 0);
    }};
    ASSERT_EQ(exs_accept(listener, nullptr, queue), 0);
    far = next().accepted;
    ASSERT_NE(far, nullptr);
    std::vector<char> into(60'000);
    exs_mhandle_t memory = exs_mregister(into.data(), into.size());
    std::string all;
    for (;;) {
        ASSERT_EQ(exs_recv(far, into.data() + 5, 45'000, 0, memory, &all, queue), 0)
            << exs_last_error();
        EXPECT_EQ(exs_mderegister(memory), -1);
        EXPECT_EQ(errno, EBUSY);
        const exs_event_t event = next();
        ASSERT_EQ(event.type, EXS_EVT_RECV);
        ASSERT_EQ(event.error, 0);
        ASSERT_EQ(event.ahandle, &all);
        if (event.end_of_stream != 0) break;
        if (type == SOCK_SEQPACKET) {
            EXPECT_EQ(event.length, all.empty() ? 40'000U : 5U);
        }
        all.append(into.data() + 5, event.length);
    }
    EXPECT_EQ(all, std::string(40'000, 'x') + "plain");
    peer.join();
    EXPECT_EQ(exs_close(far, patience), 0) << exs_last_error();
    EXPECT_EQ(exs_mderegister(memory), 0);
}

TEST_P(Exs, ConnectsInTheThreadThatAccepts) {
    const auto [type, mode] = GetParam();
    exs_shandle_t near = exs_socket(type);
    ASSERT_EQ(exs_setmode(near, mode), 0);
    ASSERT_EQ(exs_connect(near, exs_address(listener), patience, near, queue), 0)
        << exs_last_error();
    EXPECT_EQ(exs_connect(near, exs_address(listener), patience, near, queue), -1);
    EXPECT_EQ(errno, EALREADY);
    EXPECT_EQ(exs_send(near, "x", 1, 0, nullptr, nullptr, queue), -1);
    EXPECT_EQ(errno, ENOTCONN);
    exs_event_t event{};
    EXPECT_EQ(exs_qdequeue(queue, &event, 1, 1), 0) << "nobody accepts";
    ASSERT_EQ(exs_accept(listener, nullptr, queue), 0) << exs_last_error();
    exs_shandle_t far = nullptr;
    for (int i = 0; i < 2; ++i) {
        event = next();
        ASSERT_EQ(event.error, 0) << exs_last_error();
        if (event.type == EXS_EVT_ACCEPT) {
            far = event.accepted;
        } else {
            EXPECT_EQ(event.type, EXS_EVT_CONNECT);
            EXPECT_EQ(event.socket, near);
            EXPECT_EQ(event.ahandle, near);
        }
    }
    char into[8] = {};
    ASSERT_EQ(exs_recv(far, into, sizeof into, 0, nullptr, &into, queue), 0);
    ASSERT_EQ(exs_send(near, "word", 4, 0, nullptr, nullptr, queue), 0) << exs_last_error();
    for (int i = 0; i < 2; ++i) {
        event = next();
        EXPECT_EQ(event.error, 0);
        EXPECT_EQ(event.length, 4U);
    }
    EXPECT_STREQ(into, "word");
    ASSERT_EQ(exs_close(far, 20'000), 0) << exs_last_error();
    (void)exs_close(near, 0);
}

TEST_P(Exs, AConnectIsCancelledOrTooLate) {
    exs_shandle_t sock = exs_socket(std::get<0>(GetParam()));
    ASSERT_EQ(exs_connect(sock, "unix:@nobody-listens-here", -1, sock, queue), 0);
    exs_event_t event{};
    EXPECT_EQ(exs_qdequeue(queue, &event, 1, 3), 0);
    ASSERT_EQ(exs_cancel(sock, sock), 0);
    EXPECT_EQ(next().error, ECANCELED);
    ASSERT_EQ(exs_connect(sock, "unix:@nobody-listens-here", 2, sock, queue), 0);
    event = next();
    EXPECT_EQ(event.type, EXS_EVT_CONNECT);
    EXPECT_EQ(event.error, ECONNREFUSED);
    EXPECT_THAT(exs_last_error(), HasSubstr("nothing listens there"));
    // A listener that never accepts.
    ASSERT_EQ(exs_connect(sock, exs_address(listener), 2, nullptr, queue), 0);
    EXPECT_EQ(next().error, ETIMEDOUT);
    ASSERT_EQ(exs_connect(sock, exs_address(listener), -1, nullptr, queue), 0);
    ASSERT_EQ(exs_close(sock, 0), 0);
    EXPECT_EQ(next().error, ECANCELED);
}

TEST_P(Exs, TakesRegisteredMemoryAloneWhereThatIsAskedFor) {
    const auto [type, mode] = GetParam();
    exs_shandle_t strict = exs_socket(type);
    ASSERT_EQ(exs_setmode(strict, mode), 0);
    ASSERT_EQ(exs_setregisteredonly(strict, 1), 0);
    ASSERT_EQ(exs_accept(listener, nullptr, queue), 0);
    ASSERT_EQ(exs_connect(strict, exs_address(listener), patience, nullptr, queue), 0);
    exs_shandle_t other = nullptr;
    for (int i = 0; i < 2; ++i) {
        const exs_event_t event = next();
        ASSERT_EQ(event.error, 0) << exs_last_error();
        if (event.type == EXS_EVT_ACCEPT) other = event.accepted;
    }
    EXPECT_EQ(exs_setregisteredonly(strict, 0), -1);
    EXPECT_EQ(errno, EISCONN);
    std::vector<char> memory(100, 'x');
    EXPECT_EQ(exs_send(strict, memory.data(), 100, 0, nullptr, nullptr, queue), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_THAT(exs_last_error(), HasSubstr("registered_only"));
    EXPECT_EQ(exs_recv(strict, memory.data(), 100, 0, nullptr, nullptr, queue), -1);
    EXPECT_EQ(errno, EINVAL);
    exs_mhandle_t registered = exs_mregister(memory.data(), memory.size());
    std::vector<char> into(100);
    ASSERT_EQ(exs_recv(other, into.data(), 100, MSG_WAITALL, nullptr, nullptr, queue), 0);
    ASSERT_EQ(exs_send(strict, memory.data(), 100, 0, registered, nullptr, queue), 0);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(next().error, 0);
    EXPECT_EQ(into, memory);
    EXPECT_EQ(exs_mderegister(registered), 0);
    (void)exs_close(strict, 0);
    (void)exs_close(other, 0);
}

TEST_P(Exs, RefusesBytesThatAreNowhereAndAnAddressOfWhatIsInUse) {
    const auto [type, mode] = GetParam();
    exs_shandle_t near = exs_socket(type);
    ASSERT_EQ(exs_setmode(near, mode), 0);
    ASSERT_EQ(exs_accept(listener, nullptr, queue), 0);
    ASSERT_EQ(exs_connect(near, exs_address(listener), patience, nullptr, queue), 0);
    exs_shandle_t far = nullptr;
    for (int i = 0; i < 2; ++i) {
        const exs_event_t event = next();
        ASSERT_EQ(event.error, 0) << exs_last_error();
        if (event.type == EXS_EVT_ACCEPT) far = event.accepted;
    }
    EXPECT_EQ(exs_send(near, nullptr, 3, 0, nullptr, nullptr, queue), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(exs_recv(far, nullptr, 3, 0, nullptr, nullptr, queue), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_THAT(exs_last_error(), HasSubstr("null"));
    for (exs_shandle_t used : {near, far, listener}) {
        EXPECT_EQ(exs_bind(used, "127.0.0.1:0"), -1);
        EXPECT_EQ(errno, EISCONN);
    }
    (void)exs_close(near, 0);
    (void)exs_close(far, 0);
}

TEST(ExsErrors, AreNumbersAndSentences) {
    EXPECT_EQ(exs_init(EXS_VERSION + 1), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(exs_socket(SOCK_DGRAM), nullptr);
    EXPECT_EQ(errno, ESOCKTNOSUPPORT);
    EXPECT_EQ(exs_qcreate(0), nullptr);
    exs_qhandle_t queue = exs_qcreate(1);
    exs_shandle_t sock = exs_socket(SOCK_STREAM);
    EXPECT_EQ(exs_send(sock, "x", 1, 0, nullptr, nullptr, queue), -1);
    EXPECT_EQ(errno, ENOTCONN);
    EXPECT_EQ(exs_recv(sock, nullptr, 1, MSG_PEEK, nullptr, nullptr, queue), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(exs_setmode(sock, 9), -1);
    EXPECT_EQ(exs_bind(sock, "no address"), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_THAT(exs_last_error(), HasSubstr("no address"));
    EXPECT_EQ(exs_listen(sock), -1);
    EXPECT_EQ(exs_connect(sock, "no address", 100, nullptr, queue), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(exs_close(sock, 0), 0);
    EXPECT_EQ(exs_qdelete(queue), 0);
    EXPECT_EQ(exs_qdelete(nullptr), -1);
}

}  // namespace
