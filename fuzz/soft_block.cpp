// A lying peer of the soft device: an input is a list of steps that write whatever they like
// wherever the peer of a connection may write (our block, receive pool, news page; its own node
// memory, all of it), with calls of verbs on our side in between.
//
// Required: every call returns, no sanitizer has anything to say, memory that was not granted to
// that peer keeps its bytes, and other connections of this process work.
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/soft_peers.hpp"
#include "fuzz/target.hpp"
#include "layout/layout.hpp"
#include "layout/receive_pool_layout.hpp"
#include "millrace/base/log.hpp"
#include "millrace/soft/device.hpp"
#include "queue_pair/queue_pair.hpp"
#include "receives/receive_pool.hpp"
#include "tests/support/queue_pair_steps.hpp"

namespace millrace::fuzz {
namespace {

using soft::first_position;
using test::to_state;

constexpr unsigned remote_access =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr std::size_t buffer_bytes = 4096;
constexpr unsigned most_steps = 80;

/// Registered memory of ours.
struct Buffer {
    std::byte* memory = nullptr;
    ibv_mr* mr = nullptr;
    [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(memory); }
};

/// What stays from input to input.
struct World {
    Peer liar;
    Peer honest;
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_pd* other_pd = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    Buffer local;     ///< for our own requests and receives
    Buffer granted;   ///< peers may do everything to it
    Buffer readable;  ///< peers may read it
    Buffer secret;    ///< for local use, and not used
    Buffer foreign;   ///< peers may do everything, if they are of another protection domain
    ibv_mr* honest_target = nullptr;
    ibv_cq* honest_cq = nullptr;
    std::array<ibv_qp*, 2> loop{};      ///< connected to each other
    ibv_qp* to_honest = nullptr;        ///< connected to `honest`
    std::vector<std::byte> liar_image;  ///< its blocks as they were
    std::uint64_t round = 0;
};
World* world = nullptr;

constexpr std::byte pattern{0x5a};

Buffer make_buffer(ibv_pd* pd, unsigned access) {
    int descriptor = -1;
    Buffer buffer;
    buffer.memory = map_shareable(buffer_bytes, descriptor);
    std::memset(buffer.memory, static_cast<int>(pattern), buffer_bytes);
    buffer.mr = soft::reg_mr(pd, buffer.memory, buffer_bytes, buffer.address(),
                             IBV_ACCESS_LOCAL_WRITE | access);
    require(buffer.mr != nullptr, "memory can be registered");
    return buffer;
}

/// How our side is brought up; it gives up after microseconds where it is not `patient`.
constexpr test::QueuePairWay way_of(bool patient) {
    return {.access = remote_access,
            .qkey = 17,
            .reads = 4,
            .timeout = static_cast<std::uint8_t>(patient ? 20 : 1),
            .retry_cnt = 0,
            .rnr_retry = static_cast<std::uint8_t>(patient ? 7 : 1)};
}
int to_rtr(ibv_qp* qp, std::uint32_t peer) {
    return step_to_rtr(qp->qp_type, peer, way_of(true)).take(qp);
}
int to_rts(ibv_qp* qp, bool patient = true) {
    return step_to_rts(qp->qp_type, way_of(patient)).take(qp);
}

soft::QueuePair& inside(ibv_qp* qp) { return *static_cast<soft::QueuePair*>(qp); }

/// The peer's side of a connection as it would be if the peer had made it.
void forge_connection(const Peer& peer, Kind kind, ibv_qp* ours) {
    const PeerFacts::Pair& pair = peer.facts().pairs[kind];
    auto* const control = reinterpret_cast<soft::ControlLine*>(peer.node() + pair.offset);
    // It was told the same of the way as we were.
    const soft::BlockView theirs{peer.node() + pair.offset, inside(ours).geometry};
    std::memcpy(static_cast<void*>(theirs.path), inside(ours).block.path, sizeof *theirs.path);
    control->destination.store(
        soft::make_destination(inside(ours).memory.generation, ours->qp_num));
    control->state_word.store(
        soft::make_state_word(pair.generation, soft::index_of_qpn(pair.qpn), 0, IBV_QPS_RTS));
}

int post(ibv_qp* qp, ibv_wr_opcode opcode, ibv_sge piece, std::uint64_t remote, std::uint32_t key,
         unsigned flags = IBV_SEND_SIGNALED) {
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic = {remote, 1, 2, key};
    } else {
        wr.wr.rdma = {remote, key};
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
}

ibv_wc next_completion(ibv_cq* cq) {
    ibv_wc wc{};
    for (int look = 0; look < 1'000'000; ++look) {
        if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
    }
    require(false, "an honest request completes");
    return wc;
}

/// Other connections work: one within this process, one with an honest process.
void use_honest_connections() {
    World& w = *world;
    const auto stamp = ++w.round;
    std::memcpy(w.local.memory + 4000, &stamp, sizeof stamp);
    ibv_sge from{w.local.address() + 4000, 8, w.local.mr->lkey};
    ibv_sge to{w.local.address() + 4016, 8, w.local.mr->lkey};
    ibv_recv_wr receive{};
    receive.sg_list = &to;
    receive.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    require(ibv_post_recv(w.loop[1], &receive, &bad) == 0, "an honest receive can be posted");
    require(post(w.loop[0], IBV_WR_SEND, from, 0, 0) == 0, "an honest send can be posted");
    for (int i = 0; i < 2; ++i) {
        require(next_completion(w.honest_cq).status == IBV_WC_SUCCESS,
                "a message of another connection arrives");
    }
    std::uint64_t got = 0;
    std::memcpy(&got, w.local.memory + 4016, sizeof got);
    require(got == stamp, "and it is the one that was sent");
    const PeerFacts& facts = w.honest.facts();
    require(post(w.to_honest, IBV_WR_RDMA_WRITE, from, facts.shared, facts.shared_key) == 0 &&
                next_completion(w.honest_cq).status == IBV_WC_SUCCESS,
            "another process can be written to");
    std::memcpy(&got, w.honest.shared(), sizeof got);
    require(got == stamp, "and what was written is there");
}

void require_untouched(const Buffer& buffer, const char* rule) {
    require(std::all_of(buffer.memory, buffer.memory + buffer_bytes,
                        [](std::byte byte) { return byte == pattern; }),
            rule);
}

/// One input.
class Session {
  public:
    explicit Session(Input& input) : input_{input} {
        World& w = *world;
        kind_ = static_cast<Kind>(input_.below(kinds));
        const std::uint8_t how = input_.take<std::uint8_t>();
        std::memcpy(w.liar.node() + lowest_block(), w.liar_image.data(), w.liar_image.size());
        ibv_srq_init_attr attributes{};
        attributes.attr = {16, 2, 0};
        if (kind_ == kind_shared) srq_ = soft::create_srq(w.pd, &attributes);
        qp_ = make_queue_pair(kind_, w.pd, w.cq, srq_);
        if (kind_ == kind_ud) {
            ibv_ah_attr way{};
            way.dlid = 1;
            way.port_num = 1;
            way.is_global = how & 1;
            if (way.is_global != 0) {
                require(soft::query_gid(w.context, 1, 0, &way.grh.dgid) == 0, "a GID");
            }
            ah_ = soft::create_ah(w.pd, &way);
        }
        // Half of the inputs lie before there is a connection.
        if ((how & 2) != 0) {
            for (unsigned i = how >> 4; i > 0; --i) write_something();
        }
        static_cast<void>(to_rtr(qp_, w.liar.facts().pairs[kind_].qpn));
        static_cast<void>(to_rts(qp_, (how & 8) == 0));
        if ((how & 4) == 0) forge_connection(w.liar, kind_, qp_);
        for (int i = how >> 6; i >= 0; --i) receive();
    }
    ~Session() {
        World& w = *world;
        let_go();
        if ((input_.take<std::uint8_t>() & 7) == 1) static_cast<void>(to_state(qp_, IBV_QPS_RESET));
        let_go();
        require(soft::destroy_qp(qp_) == 0, "a queue pair can be destroyed");
        if (srq_ != nullptr) require(soft::destroy_srq(srq_) == 0, "and a receive queue");
        if (ah_ != nullptr) soft::destroy_ah(ah_);
        poll();
        // The liar's node memory is for the next input too; our block is gone.
        const std::byte* const node = w.liar.node();
        for (auto undo = written_.rbegin(); undo != written_.rend(); ++undo) {
            if (undo->at < node || undo->at >= node + w.liar.facts().high_water) continue;
            std::memcpy(undo->at, &undo->before, sizeof undo->before);
        }
        require_untouched(w.secret, "memory that was never granted is as it was");
        require_untouched(w.foreign, "memory of another protection domain is as it was");
        require_untouched(w.readable, "memory that may only be read is as it was");
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    void step() {
        switch (input_.below(16)) {
            case 0:
            case 1: write_something(); break;
            case 2: forge_pending(theirs()); break;
            case 3: forge_pending(ours()); break;
            case 4: forge_completion(); break;
            case 5: forge_receive(ours()); break;
            case 6: forge_receive(theirs()); break;
            case 7: forge_region(); break;
            case 8: forge_slot(); break;
            case 9: forge_word(); break;
            case 10: receive(); break;
            case 11:
            case 12: send(); break;
            case 13: poll(); break;
            case 14: static_cast<void>(ibv_req_notify_cq(world->cq, input_.below(2))); break;
            default: rarely(); break;
        }
    }

  private:
    struct Undo {
        std::byte* at;
        std::uint64_t before;
    };
    struct Area {
        std::byte* memory;
        std::size_t size;
    };
    struct Block {
        std::byte* memory;
        std::size_t size;
        soft::BlockView view;
    };

    [[nodiscard]] static std::size_t lowest_block() { return soft::blocks_offset; }

    [[nodiscard]] const PeerFacts::Pair& pair() const { return world->liar.facts().pairs[kind_]; }
    /// As the owners have made them: what lies there is not asked.
    [[nodiscard]] Block ours() const {
        const soft::QueuePair& qp = inside(qp_);
        return {qp.memory.memory, qp.memory.size, qp.block};
    }
    [[nodiscard]] Block theirs() const {
        std::byte* const memory = world->liar.node() + pair().offset;
        return {memory, pair().size, soft::BlockView{memory, inside(qp_).geometry}};
    }

    /// What may be of interest as a number.
    [[nodiscard]] std::uint64_t value() {
        const World& w = *world;
        const PeerFacts& liar = w.liar.facts();
        const std::uint32_t small = input_.take<std::uint8_t>();
        switch (input_.below(24)) {
            case 0: return input_.take<std::uint64_t>();
            case 1: return input_.take<std::uint16_t>();
            case 2: return ~std::uint64_t{0};
            case 3: return first_position + small;
            case 4: return soft::sequence_of(first_position + small);
            case 5: return std::uint64_t{1} << small % 64;
            case 6: return (std::uint64_t{1} << small % 64) - 1;
            case 7: return w.granted.address() + small;
            case 8: return w.secret.address() + small;
            case 9: return w.readable.address() + small;
            case 10: return w.foreign.address() + small;
            case 11: return w.granted.mr->rkey;
            case 12: return w.secret.mr->lkey;
            case 13: return w.readable.mr->rkey;
            case 14: return w.foreign.mr->rkey;
            case 15: return liar.shared + small;
            case 16: return liar.plain + small;
            case 17: return liar.shared_key;
            case 18: return liar.plain_key;
            case 19: return soft::make_key_word(liar.shared_key, small);
            case 20: return w.local.address() + small;
            case 21: return w.local.mr->lkey;
            case 22:
                return soft::make_state_word(pair().generation, soft::index_of_qpn(pair().qpn), 0,
                                             static_cast<ibv_qp_state>(small % 8));
            default: return small;
        }
    }

    /// Any bytes there: aligned as wide.
    void put(std::byte* at, std::size_t width, std::uint64_t number) {
        auto* const word =
            reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(at) & ~std::uintptr_t{7});
        Undo undo{word, 0};
        std::memcpy(&undo.before, word, sizeof undo.before);
        written_.push_back(undo);
        std::memcpy(at, &number, width);
    }
    template <class Field>
    void put(Field& field, std::uint64_t number) {
        put(reinterpret_cast<std::byte*>(&field), sizeof field, number);
    }

    [[nodiscard]] Area area() {
        const World& w = *world;
        std::byte* const node = w.liar.node();
        const soft::QueuePair& qp = inside(qp_);
        switch (input_.below(10)) {
            case 0:
            case 1: return {qp.memory.memory, 576};
            case 2: return {qp.memory.memory, qp.memory.size};
            case 3: return {node + pair().offset, 576};
            case 4: return {node + pair().offset, pair().size};
            case 5:
                if (qp.pool != nullptr) return {qp.pool->block().memory, qp.pool->block().size};
                return {w.liar.tables(), sizeof(soft::NodeHeader)};
            case 6:
                if (pair().pool_size != 0) return {node + pair().pool_offset, pair().pool_size};
                return {w.liar.tables(), sizeof(soft::NodeHeader)};
            case 7:
                return {w.liar.tables() + soft::directory_offset,
                        32 * sizeof(soft::DirectoryEntry)};
            case 8:
                return {w.liar.tables() + soft::region_table_offset, 8 * sizeof(soft::RegionEntry)};
            default:
                return {w.liar.tables() + soft::group_table_offset, 4 * sizeof(soft::GroupEntry)};
        }
    }
    void write_something() {
        const Area where = area();
        const std::size_t width = std::size_t{1} << input_.below(4);
        const std::size_t offset =
            input_.take<std::uint16_t>() * std::uint64_t{8} % where.size / width * width +
            (width < 8 ? input_.below(static_cast<std::uint32_t>(8 / width)) * width : 0);
        if (offset + width <= where.size) put(where.memory + offset, width, value());
    }

    void forge_pending(const Block& block) {
        const std::uint32_t tail = block.view.pending->tail.load();
        soft::PendingEntry& entry = *block.view.pending_entry(tail);
        static constexpr std::uint32_t opcodes[] = {IBV_WR_RDMA_WRITE,
                                                    IBV_WR_RDMA_WRITE_WITH_IMM,
                                                    IBV_WR_SEND,
                                                    IBV_WR_SEND_WITH_IMM,
                                                    IBV_WR_RDMA_READ,
                                                    IBV_WR_ATOMIC_CMP_AND_SWP,
                                                    IBV_WR_ATOMIC_FETCH_AND_ADD,
                                                    IBV_WR_SEND_WITH_INV,
                                                    IBV_WR_BIND_MW,
                                                    IBV_WR_LOCAL_INV};
        const std::uint32_t opcode = input_.below(11);
        put(entry.opcode, opcode < 10 ? opcodes[opcode] : value());
        put(entry.remote_address, value());
        put(entry.remote_key, value());
        put(entry.flags, input_.take<std::uint8_t>());
        put(entry.sges, input_.below(4));
        put(entry.inline_length, input_.below(128));
        put(entry.slot, input_.take<std::uint8_t>());
        put(entry.due, 0);
        auto* const sge = reinterpret_cast<ibv_sge*>(&entry + 1);
        put(sge->addr, value());
        put(sge->lkey, value());
        put(sge->length, input_.below(64));
        put(block.view.pending->tail, tail + 1);
    }
    void forge_completion() {
        const Block block = ours();
        const bool send = input_.below(2) == 0;
        const soft::QueuePair& qp = inside(qp_);
        const auto& source = send ? qp.send_source : qp.receive_source;
        if (source.ring == nullptr || qp.datagram != nullptr) return;
        const std::uint32_t position = source.position.load() + input_.below(3);
        soft::CompletionEntry& entry =
            (send ? block.view.send_ring : block.view.receive_ring)[position & source.mask];
        put(entry.byte_len, value());
        put(entry.immediate, value());
        put(entry.slot_and_flags, value());
        put(entry.sequence, soft::sequence_of(position));
    }
    void forge_receive(const Block& block) {
        const std::uint32_t position = block.view.consumed->position.load() + input_.below(3);
        soft::ReceiveEntry& entry = *block.view.receive_entry(position);
        put(entry.sges, input_.below(4));
        auto* const sge = reinterpret_cast<ibv_sge*>(&entry + 1);
        put(sge->addr, value());
        put(sge->lkey, value());
        put(sge->length, input_.take<std::uint16_t>());
        put(block.view.receive->tail, position + 1);
    }
    void forge_region() {
        const PeerFacts& liar = world->liar.facts();
        const std::uint32_t key = input_.below(2) == 0 ? liar.shared_key : liar.plain_key;
        auto& entry = reinterpret_cast<soft::RegionEntry*>(
            world->liar.tables() + soft::region_table_offset)[soft::index_of_key(key)];
        auto* const words = reinterpret_cast<std::uint64_t*>(&entry);
        put(words[input_.below(8)], value());
    }
    void forge_slot() {
        const bool mine = input_.below(2) == 0;
        const soft::QueuePair& qp = inside(qp_);
        soft::PoolView pool;
        if (mine && qp.pool != nullptr) pool = qp.pool->view();
        if (!mine && pair().pool_size != 0) {
            pool =
                soft::PoolView::of_peer(world->liar.node() + pair().pool_offset, pair().pool_size)
                    .value_or(soft::PoolView{});
        }
        if (!pool) return;
        const std::uint32_t number = input_.below(16);
        soft::PoolSlot& slot = pool.slot(number);
        const std::uint32_t position = pool.head().position.load() + input_.below(3);
        switch (input_.below(4)) {
            case 0:
                put(slot.claim,
                    soft::make_claim(
                        position,
                        input_.below(2) == 0 ? qp.memory.index : input_.take<std::uint8_t>(),
                        input_.below(4), static_cast<soft::ClaimState>(input_.below(3))));
                break;
            case 1: {
                auto* const sge = reinterpret_cast<ibv_sge*>(&slot + 1);
                put(slot.sges, input_.below(4));
                put(sge->addr, value());
                put(sge->lkey, value());
                put(sge->length, input_.take<std::uint16_t>());
                break;
            }
            case 2:
                put(slot.byte_len, value());
                put(slot.flags, value());
                put(slot.arrived, soft::sequence_of(position));
                break;
            default:
                put(pool.order(position & pool.mask()),
                    std::uint64_t{soft::sequence_of(position)} << 32 | number);
                break;
        }
    }
    /// One of the words that everything hangs on.
    void forge_word() {
        const Block block = input_.below(2) == 0 ? ours() : theirs();
        const soft::BlockView& view = block.view;
        switch (input_.below(14)) {
            case 0: put(view.pending->head, value()); break;
            case 1: put(view.pending->tail, value()); break;
            case 2: put(view.pending->lock, value()); break;
            case 3: put(view.consumed->position, value()); break;
            case 4: put(view.receive->tail, value()); break;
            case 5: put(view.send->completions, value()); break;
            case 6: put(view.fault->receive, value()); break;
            case 7: put(view.fault->send, value()); break;
            case 8: put(view.fault->receive_slot, value()); break;
            case 9: put(view.control->state_word, value()); break;
            case 10: put(view.control->armed_send, value()); break;
            case 11: put(view.control->armed_receive, value()); break;
            case 12: put(view.news->send, value()); break;
            default: put(view.fault->wishes, value()); break;
        }
    }

    void receive() {
        const World& w = *world;
        ibv_sge piece{w.local.address() + 1024, 256, w.local.mr->lkey};
        ibv_recv_wr wr{};
        wr.wr_id = 7;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        static_cast<void>(srq_ != nullptr ? ibv_post_srq_recv(srq_, &wr, &bad)
                                          : ibv_post_recv(qp_, &wr, &bad));
    }
    void send() {
        const World& w = *world;
        const PeerFacts& liar = w.liar.facts();
        static constexpr ibv_wr_opcode opcodes[] = {
            IBV_WR_RDMA_WRITE,           IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
            IBV_WR_SEND_WITH_IMM,        IBV_WR_RDMA_READ,           IBV_WR_ATOMIC_CMP_AND_SWP,
            IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV};
        const ibv_wr_opcode opcode = opcodes[input_.below(8)];
        const bool atomic =
            opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
        ibv_sge piece{w.local.address() + 64, atomic ? 8 : input_.below(64), w.local.mr->lkey};
        const bool shared = input_.below(2) == 0;
        const std::uint8_t flags = input_.take<std::uint8_t>();
        ibv_send_wr wr{};
        wr.wr_id = 9;
        wr.sg_list = &piece;
        wr.num_sge = 1;
        wr.opcode = opcode;
        wr.send_flags = flags & (IBV_SEND_SIGNALED | IBV_SEND_FENCE | IBV_SEND_SOLICITED);
        if ((flags & 128) != 0 && opcode != IBV_WR_RDMA_READ && !atomic) {
            wr.send_flags |= IBV_SEND_INLINE;
        }
        const std::uint64_t remote = (shared ? liar.shared : liar.plain) + 8;
        const std::uint32_t key = shared ? liar.shared_key : liar.plain_key;
        if (ah_ != nullptr) {
            wr.wr.ud = {ah_, pair().qpn, 17};
        } else if (atomic) {
            wr.wr.atomic = {remote, 1, 2, key};
        } else {
            wr.wr.rdma = {remote, key};
        }
        ibv_send_wr* bad = nullptr;
        static_cast<void>(ibv_post_send(qp_, &wr, &bad));
    }
    void poll() {
        std::array<ibv_wc, 8> wc;
        for (int i = 0; i < 4; ++i) {
            const int got = ibv_poll_cq(world->cq, static_cast<int>(wc.size()), wc.data());
            require(got >= 0 && got <= static_cast<int>(wc.size()), "a poll gives what fits");
        }
    }
    void rarely() {
        switch (input_.below(8)) {
            case 0:
                let_go();
                static_cast<void>(to_state(qp_, IBV_QPS_ERR));
                break;
            case 1:
                let_go();
                static_cast<void>(to_state(qp_, IBV_QPS_RESET));
                break;
            case 2:
                static_cast<void>(step_to_init(qp_->qp_type, way_of(true)).take(qp_));
                static_cast<void>(to_rtr(qp_, pair().qpn));
                static_cast<void>(to_rts(qp_));
                forge_connection(world->liar, kind_, qp_);
                break;
            case 3: {
                ibv_qp_attr attributes{};
                ibv_qp_init_attr init{};
                static_cast<void>(soft::query_qp(qp_, &attributes, 0, &init));
                break;
            }
            case 4: static_cast<void>(to_state(qp_, IBV_QPS_SQD)); break;
            case 5: static_cast<void>(to_rts(qp_)); break;
            case 6:
                if (srq_ != nullptr) {
                    ibv_srq_attr attributes{};
                    attributes.srq_limit = input_.below(8);
                    static_cast<void>(soft::modify_srq(srq_, &attributes, IBV_SRQ_LIMIT));
                }
                break;
            default: ::usleep(input_.below(4) * 20); break;
        }
    }
    /// Takes back the lie "somebody executes": we would wait a second for it to end, and keep the
    /// block for ever.
    void let_go() {
        for (const Block& block : {ours(), theirs()}) {
            for (auto* const word : {&block.view.hazard->send.word, &block.view.hazard->run.word}) {
                if ((word->load() & 1) != 0) put(*word, word->load() + 1);
            }
        }
        const soft::QueuePair& qp = inside(qp_);
        if (qp.datagram == nullptr) return;
        for (std::uint32_t node = 0; node <= soft::max_node_number; ++node) {
            auto& word = qp.datagram->senders().word(node);
            if ((word.load() & 1) != 0) put(word, word.load() & ~std::uint64_t{1});
        }
    }

    Input& input_;
    Kind kind_ = kind_rc;
    ibv_qp* qp_ = nullptr;
    ibv_srq* srq_ = nullptr;
    ibv_ah* ah_ = nullptr;
    std::vector<Undo> written_;
};

void make_world() {
    world = new World;
    World& w = *world;
    w.context = soft::open_device(soft::device_list(nullptr)[0]);
    require(w.context != nullptr, "the device can be opened");
    w.pd = soft::alloc_pd(w.context);
    w.other_pd = soft::alloc_pd(w.context);
    w.channel = soft::create_comp_channel(w.context);
    w.cq = soft::create_cq(w.context, 256, nullptr, w.channel, 0);
    w.honest_cq = soft::create_cq(w.context, 16, nullptr, nullptr, 0);
    w.local = make_buffer(w.pd, 0);
    w.granted = make_buffer(w.pd, remote_access);
    w.readable = make_buffer(w.pd, IBV_ACCESS_REMOTE_READ);
    w.secret = make_buffer(w.pd, 0);
    w.foreign = make_buffer(w.other_pd, remote_access);
    for (ibv_qp*& end : w.loop) end = make_queue_pair(kind_rc, w.pd, w.honest_cq, nullptr);
    for (int i = 0; i < 2; ++i) {
        require(to_rtr(w.loop[i], w.loop[1 - i]->qp_num) == 0 && to_rts(w.loop[i]) == 0,
                "two queue pairs of this process can be connected");
    }
    w.to_honest = make_queue_pair(kind_rc, w.pd, w.honest_cq, nullptr);
    require(
        to_rtr(w.to_honest, w.honest.facts().pairs[kind_rc].qpn) == 0 && to_rts(w.to_honest) == 0,
        "an honest peer can be connected");
    forge_connection(w.honest, kind_rc, w.to_honest);
    const std::byte* const node = w.liar.node();
    w.liar_image.assign(node + soft::blocks_offset, node + w.liar.facts().high_water);
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    using namespace millrace;
    fuzz::be_a_peer_if_asked();
    fuzz::use_own_fabric();
    fuzz::make_world();
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace millrace;
    fuzz::Input input{data, size};
    {
        fuzz::Session session{input};
        fuzz::take_steps(input, fuzz::most_steps, [&] { session.step(); });
    }
    fuzz::use_honest_connections();
    return 0;
}
