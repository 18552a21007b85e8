// Mode strict: what it says about a program's mistakes. Each program is a process of its own with
// its log on standard output, because what is said is counted per process.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/log.hpp"
#include "soft/endpoint.hpp"
#include "support/child_process.hpp"

namespace millrace::test {
namespace {

using testing::HasSubstr;

/// Runs a child in mode `strict`; all it said.
[[nodiscard]] std::string log_of(const char* child, std::vector<std::string> arguments = {},
                                 const std::string& mode = "strict:seed=1") {
    auto process = ChildProcess::start(child, std::move(arguments), {"MILLRACE_SOFT_MODE=" + mode});
    auto text = process.read_all();
    EXPECT_TRUE(process.wait().success()) << text;
    return text;
}

/// WRITEs or SENDs of 64 bytes with wr_id 0x4d; the argument says what the program does meanwhile.
MILLRACE_CHILD(strict_buffer_user) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    Pair pair;
    const std::string& what = arguments.at(0);
    const bool in_line = what == "inline";
    const unsigned flags = IBV_SEND_SIGNALED | (in_line ? unsigned{IBV_SEND_INLINE} : 0U);
    for (std::uint64_t round = 1; round <= 20; ++round) {
        const int error = what == "send" ? pair.left.send(0x4d, 0, 64, flags)
                                         : pair.left.write(0x4d, 0, 64, pair.right.address(),
                                                           pair.right.mr->rkey, flags);
        if (error != 0) return 2;
        // The mistake itself; atomic, so that the thread sanitizer leaves it to the device.
        if (what != "waits") {
            std::atomic_ref{pair.left.word(8)}.store(round, std::memory_order_relaxed);
        }
        // A SEND cannot have been executed before this.
        if (what == "send" && pair.right.receive(1, 0, 64) != 0) return 2;
        if (!pair.left.complete()) return 2;
        if (what == "send" && !pair.right.complete()) return 2;
        pair.left.word(16) = round;
    }
    base::flush_log();
    return 0;
}

TEST(StrictLines, SayThatABufferWasChangedBeforeItsCompletion) {
    for (const char* what : {"write", "send"}) {
        const std::string text = log_of("strict_buffer_user", {what});
        EXPECT_THAT(text, HasSubstr("wr_id 0x4d"));
        EXPECT_THAT(text, HasSubstr("buffer was changed"));
    }
}

TEST(StrictLines, SayNothingOfABufferThatIsLeftAlone) {
    for (const char* what : {"waits", "inline"}) {
        EXPECT_EQ(log_of("strict_buffer_user", {what}), "");
    }
}

MILLRACE_CHILD(strict_fenced_send) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    Pair pair;
    for (std::size_t at = 0; at < 64; at += 8) pair.right.word(at) = 9;
    if (pair.left.post(IBV_WR_RDMA_READ, 1, {pair.left.sge(0, 64)}, 0, pair.right.address(),
                       pair.right.mr->rkey) != 0 ||
        pair.left.write(2, 0, 64, pair.right.address(1024), pair.right.mr->rkey,
                        IBV_SEND_SIGNALED | IBV_SEND_FENCE) != 0 ||
        !pair.left.complete() || pair.right.word(1024) != 9) {
        return 2;
    }
    base::flush_log();
    return 0;
}

TEST(StrictLines, LetAFencedRequestCarryWhatAReadBeforeItBrings) {
    EXPECT_EQ(log_of("strict_fenced_send"), "");
}

/// One request (wr_id 0x4d) that fails; its completion's status is the exit status less 100.
MILLRACE_CHILD(strict_mistaken) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    const std::string& what = arguments.at(0);
    EndpointOptions options;
    options.rnr_retry = 1;
    EndpointOptions there = options;
    if (what == "region access") there.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    if (what == "queue pair access") there.qp_access = IBV_ACCESS_REMOTE_READ;
    Pair pair{options, there};
    Endpoint& left = pair.left;
    Endpoint& right = pair.right;
    const std::uint64_t end = right.address(right.options.bytes);
    std::uint32_t key = right.mr->rkey;
    int error = 0;
    if (what == "deregistered") {
        soft::dereg_mr(right.mr);
        right.mr = nullptr;
    }
    if (what == "beyond") {
        error = left.write(0x4d, 0, 64, end - 48, key);
    } else if (what == "before") {
        error = left.write(0x4d, 0, 64, right.address() - 24, key);
    } else if (what == "unknown key") {
        error = left.write(0x4d, 0, 64, right.address(), 0x777700);
    } else if (what == "next key") {
        error = left.write(0x4d, 0, 64, right.address(), key + 1);
    } else if (what == "other domain") {
        const Endpoint stranger;
        error = left.write(0x4d, 0, 64, stranger.address(), stranger.mr->rkey);
        if (!left.complete()) return 2;
        base::flush_log();
        return 0;
    } else if (what == "local key") {
        error = left.post(IBV_WR_RDMA_WRITE, 0x4d, {{left.address(), 64, 0x777700}},
                          IBV_SEND_SIGNALED, right.address(), key);
    } else if (what == "short receive") {
        if (right.receive(1, 0, 40) != 0) return 2;
        error = left.send(0x4d, 0, 64);
    } else if (what == "no receive") {
        error = left.send(0x4d, 0, 64);
    } else {
        error = left.write(0x4d, 0, 64, right.address(), key);
    }
    if (error != 0) return 2;
    const auto wc = left.complete();
    if (!wc || wc->status == IBV_WC_SUCCESS) return 3;
    // The other end is told as well.
    static_cast<void>(right.complete(std::chrono::milliseconds{50}));
    base::flush_log();
    return 0;
}

TEST(StrictLines, NameTheRequestTheQueuePairAndTheCauseOfAFailure) {
    const std::pair<const char*, std::vector<const char*>> cases[] = {
        {"beyond", {"remote access error", "16 bytes beyond the region"}},
        {"before", {"remote access error", "24 bytes before the region"}},
        {"unknown key", {"remote access error", "no memory region with key 0x777700"}},
        {"deregistered", {"remote access error", "deregistered"}},
        {"next key", {"remote access error", "never "}},
        {"other domain", {"remote access error", "another protection domain"}},
        {"region access", {"remote access error", "without IBV_ACCESS_REMOTE_WRITE"}},
        {"queue pair access", {"remote invalid request error", "IBV_ACCESS_REMOTE_WRITE is not"}},
        {"local key", {"local protection error", "no memory region with key 0x777700"}},
        {"short receive", {"remote invalid request error", "24 bytes longer than the receive"}},
        {"no receive", {"RNR retry counter exceeded", "posted no receive"}},
    };
    for (const auto& [what, parts] : cases) {
        const std::string text = log_of("strict_mistaken", {what});
        EXPECT_THAT(text, HasSubstr("wr_id 0x4d")) << what;
        for (const char* part : parts) EXPECT_THAT(text, HasSubstr(part)) << what;
    }
}

MILLRACE_CHILD(strict_hasty) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    Pair pair;
    if (arguments.at(0) == "deregisters") {
        // Without a receive it cannot have been executed.
        if (pair.left.send(0x4d, 0, 64) != 0) return 2;
        if (soft::dereg_mr(pair.left.mr) != 0) return 2;
        pair.left.mr = nullptr;
        if (pair.right.receive(1, 0, 64) != 0) return 2;
        const auto wc = pair.left.complete();
        if (!wc || wc->status != IBV_WC_LOC_PROT_ERR) return 3;
    } else if (arguments.at(0) == "forgets") {
        Endpoint end;
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_INIT;
        attributes.port_num = 1;
        if (soft::modify_qp(end.qp, &attributes, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY) !=
            EINVAL) {
            return 2;
        }
    } else {
        Endpoint end;
        if (end.to_rts() != EINVAL) return 2;
    }
    base::flush_log();
    return 0;
}

TEST(StrictLines, NameTheRequestThatStillNeedsDeregisteredMemory) {
    const std::string text = log_of("strict_hasty", {"deregisters"});
    EXPECT_THAT(text, HasSubstr("is deregistered while"));
    EXPECT_THAT(text, HasSubstr("SEND with wr_id 0x4d"));
}

TEST(StrictLines, NameTheAttributesThatATransitionLacksOrDoesNotTake) {
    const std::string text = log_of("strict_hasty", {"forgets"});
    EXPECT_THAT(text, HasSubstr("from RESET to INIT is refused"));
    EXPECT_THAT(text, HasSubstr("it needs IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX"));
    EXPECT_THAT(text, HasSubstr("it does not take IBV_QP_QKEY"));
    EXPECT_THAT(log_of("strict_hasty", {"jumps"}), HasSubstr("there is no such transition"));
}

/// More mistakes of one kind than anybody wants to read.
MILLRACE_CHILD(strict_talkative) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    Endpoint end;
    for (int i = 0; i < 1000; ++i) static_cast<void>(end.to_rts());
    base::flush_log();
    return 0;
}

TEST(StrictLines, AreNotMoreThanCanBeRead) {
    const std::string text = log_of("strict_talkative");
    const auto lines = std::count(text.begin(), text.end(), '\n');
    EXPECT_GE(lines, 8);
    EXPECT_LT(lines, 100);
}

}  // namespace
}  // namespace millrace::test
