// Random work requests in both directions of a connection against a model that is too simple to
// be wrong: two byte arrays, and per direction a list of sends and a list of receives.
#include <cstdint>
#include <deque>
#include <random>

#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

constexpr std::size_t arena = 8192;

struct Piece {
    std::size_t offset;
    std::size_t length;
};

struct ModelSend {
    ibv_wr_opcode opcode;
    std::uint64_t id;
    bool signaled;
    std::vector<Piece> pieces;
    std::optional<std::vector<std::byte>> inlined;
    std::size_t remote;
    std::uint32_t immediate;
};
struct ModelReceive {
    std::uint64_t id;
    std::vector<Piece> pieces;
};
struct Expected {
    std::uint64_t id;
    ibv_wc_opcode opcode;
    std::uint32_t bytes;
    std::optional<std::uint32_t> immediate;
    std::uint32_t slots = 0;  ///< of the send queue that it gives back
};

struct ModelEnd {
    explicit ModelEnd(Endpoint& device) : end{device}, memory(arena) {}
    Endpoint& end;
    std::vector<std::byte> memory;
    std::deque<ModelSend> sends;
    std::deque<ModelReceive> receives;
    std::deque<Expected> send_completions;
    std::deque<Expected> receive_completions;
    std::uint32_t send_slots = 0;
    std::uint32_t unreleased = 0;  ///< executed unsignaled since the last signaled one
    std::uint32_t receive_slots = 0;
};

void execute(ModelEnd& from, ModelEnd& to) {
    while (!from.sends.empty()) {
        const ModelSend& send = from.sends.front();
        const bool consumes = send.opcode != IBV_WR_RDMA_WRITE && send.opcode != IBV_WR_RDMA_READ;
        if (consumes && to.receives.empty()) return;
        std::vector<std::byte> data;
        if (send.inlined) {
            data = *send.inlined;
        } else if (send.opcode != IBV_WR_RDMA_READ) {
            for (const Piece& piece : send.pieces) {
                data.insert(data.end(), from.memory.begin() + static_cast<long>(piece.offset),
                            from.memory.begin() + static_cast<long>(piece.offset + piece.length));
            }
        }
        std::size_t bytes = data.size();
        if (send.opcode == IBV_WR_RDMA_READ) {
            std::size_t at = send.remote;
            for (const Piece& piece : send.pieces) {
                std::copy_n(to.memory.begin() + static_cast<long>(at), piece.length,
                            from.memory.begin() + static_cast<long>(piece.offset));
                at += piece.length;
            }
            bytes = at - send.remote;
        } else if (send.opcode == IBV_WR_RDMA_WRITE || send.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
            std::copy(data.begin(), data.end(), to.memory.begin() + static_cast<long>(send.remote));
        } else {
            std::size_t at = 0;
            for (const Piece& piece : to.receives.front().pieces) {
                const std::size_t length = std::min(piece.length, bytes - at);
                std::copy_n(data.begin() + static_cast<long>(at), length,
                            to.memory.begin() + static_cast<long>(piece.offset));
                at += length;
            }
        }
        if (consumes) {
            Expected wc{
                to.receives.front().id,
                send.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                static_cast<std::uint32_t>(bytes), std::nullopt};
            if (send.opcode != IBV_WR_SEND) wc.immediate = send.immediate;
            to.receive_completions.push_back(wc);
            to.receives.pop_front();
        }
        ++from.unreleased;
        if (send.signaled) {
            const ibv_wc_opcode opcode =
                send.opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
                : send.opcode == IBV_WR_RDMA_WRITE || send.opcode == IBV_WR_RDMA_WRITE_WITH_IMM
                    ? IBV_WC_RDMA_WRITE
                    : IBV_WC_SEND;
            from.send_completions.push_back({send.id, opcode, static_cast<std::uint32_t>(bytes),
                                             std::nullopt, from.unreleased});
            from.unreleased = 0;
        }
        from.sends.pop_front();
    }
}

class Model : public testing::TestWithParam<unsigned> {};

TEST_P(Model, AgreesWithTheDevice) {
    std::mt19937 random{GetParam()};
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    EndpointOptions options;
    options.bytes = arena;
    options.send_wr = std::uint32_t{1} << below(6);
    options.receive_wr = std::uint32_t{1} << below(6);
    options.inline_bytes = 128;
    Pair pair{options, options};
    ModelEnd ends[2] = {ModelEnd{pair.left}, ModelEnd{pair.right}};
    for (ModelEnd& end : ends) {
        for (std::size_t i = 0; i < arena; ++i) {
            end.memory[i] = end.end.memory[i] = static_cast<std::byte>(random());
        }
    }
    // Pieces of one request do not overlap each other; the two halves of an arena hold what is
    // sent from and what is received into, so that no request reads what it writes.
    const auto pieces_of = [&](std::size_t total, std::size_t base) {
        std::vector<Piece> pieces;
        const std::size_t count = 1 + below(4);
        std::size_t at = base + below(64);
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t length = i + 1 == count ? total : below(total + 1);
            pieces.push_back({at, length});
            at += length + below(32);
            total -= length;
        }
        return pieces;
    };
    std::uint64_t id = 0;
    for (int step = 0; step < 3000; ++step) {
        const std::size_t side = below(2);
        ModelEnd& me = ends[side];
        ModelEnd& peer = ends[1 - side];
        switch (below(6)) {
            case 0:
            case 1: {  // a receive
                const std::vector<Piece> pieces = pieces_of(1500, arena / 2);
                std::vector<ibv_sge> sges;
                for (const Piece& piece : pieces) {
                    sges.push_back(me.end.sge(piece.offset, piece.length));
                }
                ibv_recv_wr wr{};
                wr.wr_id = ++id;
                wr.sg_list = sges.data();
                wr.num_sge = static_cast<int>(sges.size());
                ibv_recv_wr* bad = nullptr;
                const bool room = me.receive_slots < me.end.capacity.max_recv_wr;
                ASSERT_EQ(ibv_post_recv(me.end.qp, &wr, &bad), room ? 0 : ENOMEM);
                if (!room) break;
                ++me.receive_slots;
                me.receives.push_back({id, pieces});
                execute(peer, me);
                break;
            }
            case 2:
            case 3: {  // a send
                ModelSend send{};
                send.opcode = static_cast<ibv_wr_opcode>(below(5));
                send.id = ++id;
                send.signaled = below(3) == 0 || me.send_slots + 1 >= me.end.capacity.max_send_wr;
                send.immediate = random();
                const bool reads = send.opcode == IBV_WR_RDMA_READ;
                const bool in_line = !reads && below(3) == 0;
                const std::size_t total = below(in_line ? 129 : 1500);
                send.pieces = pieces_of(total, reads ? arena / 2 : 0);
                send.remote = (reads ? 0 : arena / 2) + below(2000);
                std::vector<ibv_sge> sges;
                for (const Piece& piece : send.pieces) {
                    sges.push_back(me.end.sge(piece.offset, piece.length));
                }
                unsigned flags = send.signaled ? unsigned{IBV_SEND_SIGNALED} : 0U;
                if (in_line) {
                    flags |= IBV_SEND_INLINE;
                    send.inlined.emplace();
                    for (const Piece& piece : send.pieces) {
                        const auto from = me.memory.begin() + static_cast<long>(piece.offset);
                        send.inlined->insert(send.inlined->end(), from,
                                             from + static_cast<long>(piece.length));
                    }
                }
                if (below(4) == 0) flags |= IBV_SEND_FENCE;
                const bool room = me.send_slots < me.end.capacity.max_send_wr;
                ASSERT_EQ(me.end.post(send.opcode, id, sges, flags, peer.end.address(send.remote),
                                      peer.end.mr->rkey, send.immediate),
                          room ? 0 : ENOMEM);
                if (!room) break;
                ++me.send_slots;
                me.sends.push_back(std::move(send));
                execute(me, peer);
                break;
            }
            case 4: {  // the program changes what may be sent later
                const std::size_t at = below(arena / 2);
                me.memory[at] = me.end.memory[at] = static_cast<std::byte>(random());
                break;
            }
            default: {  // polls
                for (std::size_t i = below(8); i > 0; --i) {
                    const auto wc = me.end.poll_once();
                    if (!wc) {
                        ASSERT_TRUE(me.send_completions.empty() && me.receive_completions.empty());
                        break;
                    }
                    ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
                    const bool received = (wc->opcode & IBV_WC_RECV) != 0;
                    auto& queue = received ? me.receive_completions : me.send_completions;
                    ASSERT_FALSE(queue.empty());
                    EXPECT_EQ(wc->wr_id, queue.front().id);
                    EXPECT_EQ(wc->opcode, queue.front().opcode);
                    EXPECT_EQ(received ? wc->byte_len : queue.front().bytes, queue.front().bytes);
                    EXPECT_EQ((wc->wc_flags & IBV_WC_WITH_IMM) != 0,
                              queue.front().immediate.has_value());
                    if (queue.front().immediate) {
                        EXPECT_EQ(wc->imm_data, *queue.front().immediate);
                    }
                    if (received) {
                        --me.receive_slots;
                    } else {
                        me.send_slots -= queue.front().slots;
                    }
                    queue.pop_front();
                }
            }
        }
        if (step % 16 == 0) {
            for (const ModelEnd& end : ends) {
                ASSERT_EQ(std::memcmp(end.memory.data(), end.end.memory, arena), 0)
                    << "after step " << step;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(RandomRequests, Model, testing::Range(0U, 40U));

}  // namespace
}  // namespace millrace::test
