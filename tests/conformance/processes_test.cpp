// The same rules between two processes: data, order, errors, events, and a peer that ends
// (InfiniBand specification 1.2.1 vol. 1, 9.7, 10.8). The other process is an obedient endpoint
// that is told by lines what to do.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <iomanip>
#include <sstream>

#include "support/child_process.hpp"
#include "support/loopback.hpp"

namespace millrace::conformance {
namespace {

using millrace::test::ChildProcess;

std::string line_of(const Name& name, std::uint64_t address, std::uint32_t rkey) {
    std::ostringstream line;
    line << name.number << ' ' << name.lid << ' ' << address << ' ' << rkey;
    for (const std::uint8_t byte : name.gid.raw) line << ' ' << unsigned{byte};
    return line.str();
}

struct Peer {
    Name name;
    Target memory;
};
Peer peer_of(const std::string& line) {
    std::istringstream text{line};
    Peer peer;
    text >> peer.name.number >> peer.name.lid >> peer.memory.address >> peer.memory.rkey;
    for (std::uint8_t& byte : peer.name.gid.raw) {
        unsigned value = 0;
        text >> value;
        byte = static_cast<std::uint8_t>(value);
    }
    if (!text) throw std::runtime_error("the other process said: " + line);
    return peer;
}

constexpr std::size_t memory_size = 1 << 20;

// Commands: receive ID OFFSET LENGTH | next (a receive completion) | arm | event | fill SEED |
// check SEED OFFSET LENGTH | write OFFSET LENGTH | error | deregister. Each is answered by a line.
MILLRACE_CHILD(conformance_peer) {
    using millrace::test::hear;
    using millrace::test::say;
    const Device device;
    const Domain domain{made(ibv_alloc_pd(device.context()), "ibv_alloc_pd")};
    Endpoint end{device, domain.get()};
    Buffer memory{domain.get(), memory_size};
    say(line_of(end.name(), memory.address(), memory.rkey()));
    const auto hello = hear();
    if (!hello) return 1;
    const Peer peer = peer_of(*hello);
    end.connect(peer.name);
    say("connected");
    while (const auto line = hear()) {
        std::istringstream text{*line};
        std::string command;
        std::uint64_t first = 0;
        std::size_t offset = 0;
        std::size_t length = 0;
        text >> command >> first >> offset >> length;
        std::ostringstream answer;
        if (command == "receive") {
            answer << end.receive(first, {memory.slice(offset, length)});
        } else if (command == "next") {
            const ibv_wc got = next(end.receives);
            answer << got.wr_id << ' ' << got.status << ' ' << got.opcode << ' ' << got.byte_len;
        } else if (command == "arm") {
            answer << ibv_req_notify_cq(end.receives.get(), static_cast<int>(first));
        } else if (command == "event") {
            ibv_cq* queue = nullptr;
            void* context = nullptr;
            if (event_waits(end.channel) &&
                ibv_get_cq_event(end.channel.get(), &queue, &context) == 0) {
                ibv_ack_cq_events(queue, 1);
                answer << (queue == end.receives.get() ? "receives" : "sends");
            } else {
                answer << "none";
            }
        } else if (command == "fill") {
            memory.fill(static_cast<unsigned>(first));
            answer << 0;
        } else if (command == "check") {
            std::size_t wrong = 0;
            for (std::size_t i = offset; i < offset + length; ++i) {
                wrong += memory.data()[i] != Buffer::pattern(i, static_cast<unsigned>(first));
            }
            answer << wrong;
        } else if (command == "write") {
            const Target target{peer.memory.address + offset, peer.memory.rkey};
            answer << end.write(first, {memory.slice(offset, length)}, target) << ' '
                   << next(end.sends).status;
        } else if (command == "error") {
            answer << end.to(IBV_QPS_ERR);
        } else if (command == "deregister") {
            answer << memory.deregister();
        } else {
            return 2;
        }
        say(answer.str());
    }
    return 0;
}

/// Ours: ordinary memory, or a shared mapping, which devices may treat differently.
class Processes : public OnDevice, public testing::WithParamInterface<bool> {
  protected:
    void SetUp() override {
        if (GetParam()) {
            const int file =
                static_cast<int>(syscall(SYS_memfd_create, "conformance", 2U /* sealable */));
            ASSERT_GE(file, 0);
            ASSERT_EQ(ftruncate(file, memory_size), 0);
            pages = mmap(nullptr, memory_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            close(file);
        } else {
            pages = mmap(nullptr, memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
        }
        ASSERT_NE(pages, MAP_FAILED);
        region.reset(
            made(ibv_reg_mr(domain.get(), pages, memory_size, static_cast<int>(all_access)),
                 "ibv_reg_mr"));
        Options options = impatient();
        options.retries = 3;
        end.emplace(device, domain.get(), options);
        child.emplace(ChildProcess::start("conformance_peer"));
        const auto hello = child->read_line();
        ASSERT_TRUE(hello.has_value());
        peer = peer_of(*hello);
        ASSERT_TRUE(child->write_line(
            line_of(end->name(), reinterpret_cast<std::uint64_t>(pages), region->rkey)));
        end->connect(peer.name);
        ASSERT_EQ(child->read_line(), "connected");
    }
    void TearDown() override {
        if (child) child->close_input();
        end.reset();
        region.reset();
        if (pages != MAP_FAILED && pages != nullptr) munmap(pages, memory_size);
    }
    std::string ask(const std::string& command) {
        EXPECT_TRUE(child->write_line(command));
        return child->read_line().value_or("(nothing)");
    }
    [[nodiscard]] ibv_sge slice(std::size_t offset, std::size_t length) const {
        return {reinterpret_cast<std::uint64_t>(pages) + offset, static_cast<std::uint32_t>(length),
                region->lkey};
    }
    void fill(unsigned seed) {
        auto* const bytes = static_cast<std::byte*>(pages);
        for (std::size_t i = 0; i < memory_size; ++i) bytes[i] = Buffer::pattern(i, seed);
    }
    [[nodiscard]] std::size_t wrong(unsigned seed, std::size_t offset, std::size_t length) const {
        const auto* const bytes = static_cast<const std::byte*>(pages);
        std::size_t count = 0;
        for (std::size_t i = offset; i < offset + length; ++i)
            count += bytes[i] != Buffer::pattern(i, seed);
        return count;
    }
    [[nodiscard]] Target there(std::size_t offset) const {
        return {peer.memory.address + offset, peer.memory.rkey};
    }

    void* pages = nullptr;
    Region region;
    std::optional<Endpoint> end;
    std::optional<ChildProcess> child;
    Peer peer;
};

TEST_P(Processes, WritesAndReadsOfManyLengthsArrive) {
    fill(1);
    for (const std::size_t length : {1, 7, 8, 100, 4096, 5000, 70000}) {
        SCOPED_TRACE(length);
        ASSERT_EQ(end->write(1, {slice(3, length)}, there(3)), 0);
        EXPECT_COMPLETES(end->sends, 1, IBV_WC_RDMA_WRITE);
        EXPECT_EQ(ask("check 1 3 " + std::to_string(length)), "0");
    }
    EXPECT_EQ(ask("fill 2"), "0");
    ASSERT_EQ(end->read(2, {slice(0, memory_size)}, there(0)), 0);
    EXPECT_COMPLETES(end->sends, 2, IBV_WC_RDMA_READ);
    EXPECT_EQ(wrong(2, 0, memory_size), 0U);
}

TEST_P(Processes, TheOtherSideWritesToUs) {
    EXPECT_EQ(ask("fill 3"), "0");
    EXPECT_EQ(ask("write 5 4096 10000"), "0 0");
    EXPECT_EQ(wrong(3, 4096, 10000), 0U);
}

TEST_P(Processes, SendsWaitForReceivesAndKeepTheirOrder) {
    fill(4);
    for (std::uint64_t id = 0; id < 5; ++id) {
        ASSERT_EQ(end->send(id, {slice(100 * id, 100)}), 0);
    }
    EXPECT_FALSE(poll_once(end->sends.get()).has_value());
    for (std::uint64_t id = 0; id < 5; ++id) {
        std::ostringstream command;
        command << "receive " << id << ' ' << 100 * id << " 100";
        EXPECT_EQ(ask(command.str()), "0");
    }
    for (std::uint64_t id = 0; id < 5; ++id) {
        std::ostringstream expected;
        expected << id << ' ' << IBV_WC_SUCCESS << ' ' << IBV_WC_RECV << " 100";
        EXPECT_EQ(ask("next"), expected.str());
        EXPECT_COMPLETES(end->sends, id, IBV_WC_SEND);
    }
    EXPECT_EQ(ask("check 4 0 500"), "0");
}

TEST_P(Processes, AnEventWakesTheOtherProcess) {
    EXPECT_EQ(ask("receive 1 0 100"), "0");
    EXPECT_EQ(ask("arm 0"), "0");
    ASSERT_TRUE(child->write_line("event"));
    ASSERT_EQ(end->send(2, {slice(0, 8)}), 0);
    EXPECT_EQ(child->read_line(), "receives");
    EXPECT_COMPLETES(end->sends, 2, IBV_WC_SEND);
}

TEST_P(Processes, ASolicitedEventWakesTheOtherProcessAnOrdinaryOneDoesNot) {
    EXPECT_EQ(ask("receive 1 0 100"), "0");
    EXPECT_EQ(ask("receive 2 0 100"), "0");
    EXPECT_EQ(ask("arm 1"), "0");
    ASSERT_EQ(end->send(3, {slice(0, 8)}), 0);
    EXPECT_COMPLETES(end->sends, 3, IBV_WC_SEND);
    ASSERT_TRUE(child->write_line("event"));
    EXPECT_FALSE(child->read_line(std::chrono::milliseconds{50}).has_value());
    ASSERT_EQ(end->send(4, {slice(0, 8)}, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED), 0);
    EXPECT_EQ(child->read_line(), "receives");
}

TEST_P(Processes, AViolationIsRefusedAndTellsBothSides) {
    EXPECT_EQ(ask("receive 9 0 100"), "0");
    Target wrong_key = there(0);
    wrong_key.rkey ^= 0x5a5a00;
    ASSERT_EQ(end->write(1, {slice(0, 8)}, wrong_key), 0);
    EXPECT_FAILS(end->sends, 1, IBV_WC_REM_ACCESS_ERR);
    std::istringstream answer{ask("next")};
    int id = 0;
    int status = 0;
    answer >> id >> status;
    EXPECT_EQ(id, 9);
    EXPECT_EQ(status, IBV_WC_WR_FLUSH_ERR);
}

TEST_P(Processes, AKeyIsWorthNothingAfterDeregistrationThere) {
    ASSERT_EQ(end->write(1, {slice(0, 8)}, there(0)), 0);
    EXPECT_COMPLETES(end->sends, 1, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(ask("deregister"), "0");
    ASSERT_EQ(end->write(2, {slice(0, 8)}, there(0)), 0);
    EXPECT_FAILS(end->sends, 2, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Processes, APeerInErrorIsRetriedAndThenGivenUp) {
    EXPECT_EQ(ask("error"), "0");
    ASSERT_EQ(end->write(1, {slice(0, 8)}, there(0)), 0);
    EXPECT_FAILS(end->sends, 1, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(Processes, AKilledPeerIsReportedToWhomeverSendsToIt) {
    ASSERT_EQ(end->receive(5, {slice(0, 8)}), 0);
    EXPECT_TRUE(child->kill_and_wait().killed_by(9));
    ASSERT_EQ(end->write(1, {slice(0, 8)}, there(0)), 0);
    const ibv_wc failed = next(end->sends);
    EXPECT_EQ(failed.wr_id, 1U);
    // Retried in vain, or flushed because the death was known already.
    EXPECT_TRUE(failed.status == IBV_WC_RETRY_EXC_ERR || failed.status == IBV_WC_WR_FLUSH_ERR)
        << ibv_wc_status_str(failed.status);
    EXPECT_FAILS(end->receives, 5, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(end->state(), IBV_QPS_ERR);
}

TEST_P(Processes, APeerThatIsStoppedGoesOnWhereItWas) {
    ASSERT_TRUE(child->stop());  // it does not poll, but its device answers
    for (std::uint64_t id = 0; id < 10; ++id) {
        ASSERT_EQ(end->write(id, {slice(0, 4096)}, there(0)), 0);
        EXPECT_COMPLETES(end->sends, id, IBV_WC_RDMA_WRITE);
    }
    child->resume();
    EXPECT_EQ(ask("fill 6"), "0");
    ASSERT_EQ(end->read(11, {slice(0, 4096)}, there(0)), 0);
    EXPECT_COMPLETES(end->sends, 11, IBV_WC_RDMA_READ);
    EXPECT_EQ(wrong(6, 0, 4096), 0U);
}

INSTANTIATE_TEST_SUITE_P(With, Processes, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& shared) {
                             return shared.param ? "SharedMappings" : "OrdinaryMemory";
                         });

}  // namespace
}  // namespace millrace::conformance
