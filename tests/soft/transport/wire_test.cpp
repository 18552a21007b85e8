// Requests that travel as bytes through a socket between two processes (socket_transport.hpp): what
// a queue pair needs of a Transport is all that it needs, of RC and UD.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "soft/endpoint.hpp"
#include "soft/mode_scope.hpp"
#include "soft/transport/socket_transport.hpp"
#include "support/child_process.hpp"

namespace millrace::test {
namespace {

constexpr std::uint32_t wire_qkey = 0;
constexpr unsigned wire_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

EndpointOptions wire_options(ibv_qp_type type) {
    EndpointOptions options;
    options.type = type;
    options.shared_memory = false;  // nobody else may come to it
    options.access = wire_access;
    options.qp_access = wire_access & ~unsigned{IBV_ACCESS_LOCAL_WRITE};
    return options;
}

std::string text_of(const ibv_wc& wc) {
    std::ostringstream text;
    text << wc.status << ' ' << wc.opcode << ' ' << wc.byte_len << ' '
         << ((wc.wc_flags & IBV_WC_WITH_IMM) != 0 ? wc.imm_data : 0);
    return text.str();
}

/// The other end: receives, shows and fills its memory as it is told, and polls all the time.
MILLRACE_CHILD(wire_end) {
    const int socket = std::stoi(arguments.at(0));
    Endpoint end{wire_options(arguments.at(1) == "UD" ? IBV_QPT_UD : IBV_QPT_RC)};
    carry_by_socket(end.qp, socket);
    if (end.to_init() != 0 || end.to_rtr(end.qp->qp_num) != 0 || end.to_rts() != 0) return 1;
    say(std::to_string(end.qp->qp_num) + ' ' + std::to_string(end.mr->rkey) + ' ' +
        std::to_string(end.address()));
    std::deque<std::string> completions;
    bool asked = false;
    for (;;) {
        if (const auto wc = end.poll_once()) completions.push_back(text_of(*wc));
        if (asked && !completions.empty()) {
            say(completions.front());
            completions.pop_front();
            asked = false;
        }
        pollfd input{STDIN_FILENO, POLLIN, 0};
        if (::poll(&input, 1, 1) <= 0) continue;
        const auto line = hear();
        if (!line) return 0;
        std::istringstream words{*line};
        std::string what;
        std::size_t offset = 0;
        std::string rest;
        words >> what >> offset >> rest;
        if (what == "receive") {
            if (end.receive(1, offset, 256) != 0) return 2;
            say("posted");
        } else if (what == "show") {
            say(std::string{reinterpret_cast<const char*>(end.memory + offset)});
        } else if (what == "fill") {
            std::memcpy(end.memory + offset, rest.c_str(), rest.size() + 1);
            say("filled");
        } else if (what == "completion") {
            asked = true;
        }
    }
}

/// This process's end, and the child that has the other one.
class WireTo {
  public:
    explicit WireTo(ibv_qp_type type) : end{wire_options(type)} {
        int sockets[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) throw std::bad_alloc{};
        child = ChildProcess::start("wire_end",
                                    {std::to_string(sockets[1]), type == IBV_QPT_UD ? "UD" : "RC"});
        close(sockets[1]);
        carry_by_socket(end.qp, sockets[0]);
        EXPECT_EQ(end.to_init(), 0);
        std::istringstream words{child->read_line().value_or("")};
        words >> qpn >> rkey >> address;
        EXPECT_EQ(end.to_rtr(qpn), 0);
        EXPECT_EQ(end.to_rts(), 0);
    }
    std::string ask(const std::string& line) {
        child->write_line(line);
        return child->read_line().value_or("");
    }
    void fill(const std::string& text) { std::memcpy(end.memory, text.c_str(), text.size() + 1); }
    [[nodiscard]] std::string shown(std::size_t offset) const {
        return reinterpret_cast<const char*>(end.memory + offset);
    }

    ModeScope mode{"fast"};
    Endpoint end;
    std::optional<ChildProcess> child;
    std::uint32_t qpn = 0;
    std::uint32_t rkey = 0;
    std::uint64_t address = 0;
};

/// As the other end says it.
std::string said_of_receive(ibv_wc_opcode opcode, std::uint32_t bytes,
                            std::uint32_t immediate = 0) {
    ibv_wc wc{};
    wc.opcode = opcode;
    wc.byte_len = bytes;
    wc.imm_data = immediate;
    wc.wc_flags = immediate != 0 ? unsigned{IBV_WC_WITH_IMM} : 0U;
    return text_of(wc);
}

TEST(Wire, CarriesASendToItsReceive) {
    WireTo wire{IBV_QPT_RC};
    ASSERT_EQ(wire.ask("receive 512"), "posted");
    wire.fill("from here");
    ASSERT_EQ(
        wire.end.post(IBV_WR_SEND_WITH_IMM, 7, {wire.end.sge(0, 10)}, IBV_SEND_SIGNALED, 0, 0, 99),
        0);
    const auto wc = wire.end.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, 7U);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(wire.ask("completion"), said_of_receive(IBV_WC_RECV, 10, 99));
    EXPECT_EQ(wire.ask("show 512"), "from here");
}

TEST(Wire, LetsASendWaitForItsReceive) {
    WireTo wire{IBV_QPT_RC};
    wire.fill("early");
    ASSERT_EQ(wire.end.send(7, 0, 6), 0);
    EXPECT_FALSE(wire.end.complete(std::chrono::milliseconds{20}));
    ASSERT_EQ(wire.ask("receive 512"), "posted");
    EXPECT_EQ(status_of(wire.end), IBV_WC_SUCCESS);
    EXPECT_EQ(wire.ask("show 512"), "early");
}

TEST(Wire, CarriesWritesAndReads) {
    WireTo wire{IBV_QPT_RC};
    wire.fill("written");
    ASSERT_EQ(wire.end.write(1, 0, 8, wire.address + 64, wire.rkey), 0);
    ASSERT_EQ(wire.end.post(IBV_WR_RDMA_READ, 2, {wire.end.sge(1024, 8)}, IBV_SEND_SIGNALED,
                            wire.address + 64, wire.rkey),
              0);
    EXPECT_EQ(status_of(wire.end), IBV_WC_SUCCESS);
    const auto read = wire.end.complete();
    ASSERT_TRUE(read);
    EXPECT_EQ(read->status, IBV_WC_SUCCESS);
    EXPECT_EQ(read->opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(wire.shown(1024), "written");
    ASSERT_EQ(wire.ask("fill 64 other"), "filled");
    ASSERT_EQ(wire.end.post(IBV_WR_RDMA_READ, 3, {wire.end.sge(2048, 6)}, IBV_SEND_SIGNALED,
                            wire.address + 64, wire.rkey),
              0);
    EXPECT_EQ(status_of(wire.end), IBV_WC_SUCCESS);
    EXPECT_EQ(wire.shown(2048), "other");
}

TEST(Wire, CarriesAtomics) {
    WireTo wire{IBV_QPT_RC};
    ASSERT_EQ(wire.end.fetch_add(1, 64, wire.address, wire.rkey, 5), 0);
    ASSERT_EQ(wire.end.compare_swap(2, 72, wire.address, wire.rkey, 5, 9), 0);
    ASSERT_EQ(wire.end.fetch_add(3, 80, wire.address, wire.rkey, 1), 0);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(status_of(wire.end), IBV_WC_SUCCESS);
    EXPECT_EQ(wire.end.word(64), 0U);
    EXPECT_EQ(wire.end.word(72), 5U);
    EXPECT_EQ(wire.end.word(80), 9U);
}

TEST(Wire, TellsTheSenderWhatTheReceiverRefuses) {
    WireTo wire{IBV_QPT_RC};
    ASSERT_EQ(wire.end.write(1, 0, 8, wire.address, wire.rkey + (1U << 8)), 0);
    ASSERT_EQ(wire.end.write(2, 0, 8, wire.address, wire.rkey), 0);
    const auto failed = wire.end.complete();
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->wr_id, 1U);
    EXPECT_EQ(failed->status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(status_of(wire.end), IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(wire.end.qp), IBV_QPS_ERR);
}

TEST(Wire, CarriesDatagrams) {
    WireTo wire{IBV_QPT_UD};
    ibv_ah_attr to{};
    to.dlid = 1;
    to.port_num = 1;
    ibv_ah* const ah = soft::create_ah(wire.end.pd, &to);
    ASSERT_NE(ah, nullptr);
    ASSERT_EQ(wire.ask("receive 512"), "posted");
    wire.fill("datagram");
    const auto send = [&](std::uint32_t qkey) {
        ibv_sge piece = wire.end.sge(0, 9);
        ibv_send_wr wr{};
        wr.sg_list = &piece;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = wire.qpn;
        wr.wr.ud.remote_qkey = qkey;
        ibv_send_wr* bad = nullptr;
        EXPECT_EQ(ibv_post_send(wire.end.qp, &wr, &bad), 0);
        EXPECT_EQ(status_of(wire.end), IBV_WC_SUCCESS);
    };
    send(wire_qkey + 1);  // nobody receives it
    send(wire_qkey);
    EXPECT_EQ(wire.ask("completion"), said_of_receive(IBV_WC_RECV, 40 + 9));
    EXPECT_EQ(wire.ask("show 552"), "datagram");
    soft::destroy_ah(ah);
}

}  // namespace
}  // namespace millrace::test
