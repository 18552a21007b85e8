// A lying asker of the copy service: an input is a list of steps that write whatever they like into
// the copy box and its bell, as the peer may that maps them, ask for copies with what lies there,
// and change on our side what is asked about: states, rights, receives, registrations.
//
// Required: every question is answered, no sanitizer has anything to say, memory that was not
// granted to that peer neither changes nor is read, and an honest question is answered as it
// should.
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "copy_service/copy_service.hpp"
#include "fuzz/input.hpp"
#include "fuzz/session.hpp"
#include "fuzz/soft_peers.hpp"
#include "fuzz/target.hpp"
#include "layout/copy_box_layout.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/soft/device.hpp"
#include "process/context.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "system/shared_futex.hpp"
#include "tests/support/queue_pair_steps.hpp"

namespace millrace::fuzz {
namespace {

using soft::CopyBox;
using soft::CopyOutcome;
using soft::CopyPurpose;
using soft::CopyQuestion;
using test::to_state;

constexpr unsigned remote_access =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr std::size_t buffer_bytes = 8192;
constexpr unsigned most_steps = 60;
/// What memory holds that nobody may read: no step writes it.
constexpr std::uint64_t mark = 0x6d61726b'a55a'1eaf;

/// Memory of ours that peers cannot map: it lies between pages that are not there.
struct Buffer {
    std::byte* memory = nullptr;
    ibv_mr* mr = nullptr;
    [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(memory); }

    void fill() const {
        for (std::size_t i = 0; i < buffer_bytes; i += sizeof mark) {
            std::memcpy(memory + i, &mark, sizeof mark);
        }
    }
    [[nodiscard]] bool as_filled() const {
        for (std::size_t i = 0; i < buffer_bytes; i += sizeof mark) {
            if (std::memcmp(memory + i, &mark, sizeof mark) != 0) return false;
        }
        return true;
    }
};

Buffer make_buffer(ibv_pd* pd, unsigned access) {
    constexpr std::size_t gap = 4096;
    Buffer buffer;
    void* const room =
        ::mmap(nullptr, buffer_bytes + 2 * gap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(room != MAP_FAILED, "there is memory");
    buffer.memory = static_cast<std::byte*>(room) + gap;
    require(::mprotect(buffer.memory, buffer_bytes, PROT_READ | PROT_WRITE) == 0, "for us");
    buffer.mr = soft::reg_mr(pd, buffer.memory, buffer_bytes, buffer.address(),
                             IBV_ACCESS_LOCAL_WRITE | access);
    require(buffer.mr != nullptr, "memory can be registered");
    return buffer;
}

struct World {
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_pd* other_pd = nullptr;
    ibv_cq* cq = nullptr;
    Buffer granted;   ///< peers may do everything to it
    Buffer received;  ///< is posted for receives
    Buffer writable;  ///< peers may only write it
    Buffer secret;    ///< for local use, and not used
    Buffer foreign;   ///< peers may do everything, if they are of another protection domain
    Buffer gone;      ///< registered for everything, and not there
};
World* world = nullptr;

constexpr test::QueuePairWay way{.access = remote_access, .reads = 4};

int to_rts(ibv_qp* qp, std::uint32_t peer) {
    const int error = step_to_rtr(IBV_QPT_RC, peer, way).take(qp);
    return error != 0 ? error : step_to_rts(IBV_QPT_RC, way).take(qp);
}

/// One input: a connection within this process, whose asking end the input is.
class Session {
  public:
    explicit Session(Input& input) : input_{input} {
        World& w = *world;
        if (input_.below(2) != 0) {
            ibv_srq_init_attr attributes{};
            attributes.attr = {16, 2, 0};
            srq_ = soft::create_srq(w.pd, &attributes);
            require(srq_ != nullptr, "a receive queue can be made");
        }
        asker_ = make_queue_pair(kind_rc, w.pd, w.cq, nullptr);
        owner_ = make_queue_pair(srq_ != nullptr ? kind_shared : kind_rc, w.pd, w.cq, srq_);
        connect();
        w.secret.fill();
        w.foreign.fill();
        w.writable.fill();
    }
    ~Session() {
        ask_honestly();
        release_box();
        require(soft::destroy_qp(asker_) == 0 && soft::destroy_qp(owner_) == 0,
                "queue pairs can be destroyed");
        if (srq_ != nullptr) require(soft::destroy_srq(srq_) == 0, "and a receive queue");
        World& w = *world;
        ibv_wc wc;
        for (int i = 0; i < 64 && ibv_poll_cq(w.cq, 1, &wc) == 1; ++i) {
        }
        require(w.secret.as_filled(), "memory that was never granted is as it was");
        require(w.foreign.as_filled(), "memory of another protection domain is as it was");
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    void step() {
        CopyQuestion& question = box().question;
        switch (input_.below(16)) {
            case 0: put(question.queue_pair, value()); break;
            case 1: put(question.purpose, input_.below(8) == 7 ? value() : input_.below(6)); break;
            case 2: put(question.key, value()); break;
            case 3: put(question.receive, value()); break;
            case 4: put(question.address, value()); break;
            case 5: put(question.bytes, value()); break;
            case 6: put(box().state, input_.below(2) == 0 ? input_.below(5) : value()); break;
            case 7: put(input_.below(2) == 0 ? box().waiting : box().outcome, value()); break;
            case 8: {
                auto* const words = reinterpret_cast<std::uint64_t*>(bytes());
                put(words[value() % (soft::largest_copy / 8)], value());
                break;
            }
            case 9:
                put(input_.below(2) == 0 ? bell().rung : bell().sleeps, value());
                if (input_.below(2) == 0) ring();
                break;
            case 10: {  // and change it while it may be read
                question = likely();
                box().state.store(soft::copy_posted);
                ring();
                for (unsigned i = input_.below(4); i > 0; --i) {
                    put(question.address, value());
                    put(question.key, value());
                }
                break;
            }
            case 11: rarely(); break;
            case 12: receive(); break;
            case 13: question = likely(); [[fallthrough]];
            default: ask(); break;
        }
    }

  private:
    template <class Field>
    static void put(Field& field, std::uint64_t number) {
        using Value = std::uint64_t;
        if constexpr (requires { field.store(0); }) {
            field.store(static_cast<std::uint32_t>(number));
        } else if constexpr (sizeof(Field) == sizeof(Value)) {
            std::atomic_ref{field}.store(number);
        } else {
            std::atomic_ref{field}.store(static_cast<Field>(number));
        }
    }

    [[nodiscard]] soft::QueuePair& owner() const { return *static_cast<soft::QueuePair*>(owner_); }
    [[nodiscard]] CopyBox& box() const { return *reinterpret_cast<CopyBox*>(block_.memory); }
    [[nodiscard]] std::byte* bytes() const { return block_.memory + soft::copy_bytes_offset; }
    [[nodiscard]] static soft::Process& process() {
        return *soft::context_of(world->context)->process;
    }
    [[nodiscard]] static soft::CopyBell& bell() { return process().node().copy_bell(); }
    static void ring() {
        bell().rung.fetch_add(1);
        soft::wake_sleepers(bell().rung);
    }

    void connect() {
        // The first time they are in INIT already.
        for (ibv_qp* const qp : {asker_, owner_}) {
            static_cast<void>(step_to_init(IBV_QPT_RC, way).take(qp));
        }
        require(to_rts(owner_, asker_->qp_num) == 0 && to_rts(asker_, owner_->qp_num) == 0,
                "two queue pairs of this process can be connected");
        peer_ = owner().connection(owner().sends.hold()).peer();
        process().copies().serve(process().listed().hold(), owner().copy_granter(), *peer_, true);
        const std::uint64_t word = owner().block.news->copy_box.load();
        const auto block = peer_->map_block(static_cast<std::uint32_t>(word),
                                            static_cast<std::uint32_t>(word >> 32));
        require(block.has_value() && block->size >= soft::copy_box_size, "there is a copy box");
        block_ = *block;
    }
    void release_box() {
        rest();
        peer_->unmap_block(block_);
        block_ = {};
        peer_.reset();
    }

    [[nodiscard]] const Buffer& some_buffer() {
        const World& w = *world;
        const Buffer* const buffers[] = {&w.granted, &w.received, &w.writable,
                                         &w.secret,  &w.foreign,  &w.gone};
        return *buffers[input_.below(6)];
    }
    /// What may be of interest as a number.
    [[nodiscard]] std::uint64_t value() {
        const Buffer& buffer = some_buffer();
        const std::uint32_t small = input_.take<std::uint8_t>();
        switch (input_.below(12)) {
            case 0: return input_.take<std::uint64_t>();
            case 1: return ~std::uint64_t{0} - small;
            case 2: return soft::first_position + small;
            case 3: return std::uint64_t{1} << small % 64;
            case 4: return buffer.address() + small * 8;
            case 5: return buffer.address() - small;
            case 6: return buffer.address() + buffer_bytes - small;
            case 7: return buffer.mr->rkey;
            case 8: return buffer.mr->rkey ^ small;
            case 9: return owner().memory.index;
            case 10: return soft::largest_copy - 128 + small;
            default: return small;
        }
    }
    /// A question with most of it right.
    [[nodiscard]] CopyQuestion likely() {
        CopyQuestion question = honest();
        switch (input_.below(8)) {
            case 0: question.queue_pair = static_cast<std::uint32_t>(value()); break;
            case 1: question.key = static_cast<std::uint32_t>(value()); break;
            case 2: question.address = value(); break;
            case 3: question.bytes = static_cast<std::uint32_t>(value()); break;
            case 4:
                question.purpose = static_cast<std::uint32_t>(CopyPurpose::receive);
                question.receive = soft::first_position + input_.below(8);
                question.address = world->received.address() + input_.below(512);
                break;
            case 5: question.purpose = input_.below(6); break;
            case 6: {
                const Buffer& buffer = some_buffer();
                question.key = buffer.mr->rkey;
                question.address = buffer.address() + input_.below(128);
                question.purpose = input_.below(5);
                question.bytes = input_.below(2) == 0 ? 8 : 64;
                break;
            }
            default: break;
        }
        return question;
    }
    [[nodiscard]] CopyQuestion honest() const {
        CopyQuestion question{};
        question.queue_pair = owner().memory.index;
        question.purpose = static_cast<std::uint32_t>(CopyPurpose::write);
        question.key = world->granted.mr->rkey;
        question.address = world->granted.address() + 128;
        question.bytes = 64;
        return question;
    }

    void await(const char* rule, const auto& condition) {
        base::NapParker parker;
        require(base::wait_until(condition, base::Deadline::after(std::chrono::seconds{20}),
                                 base::WaitPolicy{}, parker) == base::Status::ok,
                rule);
    }
    void post_and_await() {
        box().state.store(soft::copy_posted);
        ring();
        await("a question is answered", [this] { return box().state.load() == soft::copy_done; });
    }
    /// Asks for what lies in the box, whatever that is.
    CopyOutcome ask() {
        const CopyQuestion asked = box().question;
        rest();
        box().question = asked;
        std::memset(bytes(), 0x11, 64);
        post_and_await();
        const auto outcome = static_cast<CopyOutcome>(box().outcome.load());
        box().state.store(soft::copy_free);
        require_nothing_read();
        require(!broken_ || outcome != CopyOutcome::ok, "a queue pair in ERROR hears nobody");
        return outcome;
    }
    /// Nothing is asked any more, nor answered. The end of an answer may still be to come after the
    /// work: it comes before that of a further question, which it may be taken for.
    void rest() {
        std::uint32_t posted = soft::copy_posted;
        box().state.compare_exchange_strong(posted, soft::copy_free);
        await("the service comes to rest", [] { return (process().copies().working() & 1) == 0; });
        box().question = {};
        post_and_await();
        box().state.store(soft::copy_free);
    }
    void require_nothing_read() const {
        std::byte pattern[sizeof mark];
        std::memcpy(pattern, &mark, sizeof mark);
        require(std::search(bytes(), bytes() + soft::largest_copy, pattern,
                            pattern + sizeof pattern) == bytes() + soft::largest_copy,
                "memory that may not be read was not");
    }
    void ask_honestly() {
        rest();
        require_nothing_read();
        if (broken_) {
            broken_ = false;
            release_box();
            require(to_state(owner_, IBV_QPS_RESET) == 0 && to_state(asker_, IBV_QPS_RESET) == 0,
                    "queue pairs can be reset");
            connect();
        }
        require(give_rights(remote_access) == 0, "rights can be given");
        std::memset(world->granted.memory, 0x22, buffer_bytes);
        box().question = honest();
        require(ask() == CopyOutcome::ok, "an honest question is answered well");
        const auto is = [](std::byte value) {
            return [value](std::byte byte) { return byte == value; };
        };
        const std::byte* const memory = world->granted.memory;
        require(std::all_of(memory + 128, memory + 192, is(std::byte{0x11})) &&
                    std::all_of(memory, memory + 128, is(std::byte{0x22})) &&
                    std::all_of(memory + 192, memory + buffer_bytes, is(std::byte{0x22})),
                "and what it says is done, no more");
    }

    void receive() {
        ibv_sge piece{world->received.address() + input_.below(64), 256, world->received.mr->lkey};
        ibv_recv_wr wr{};
        wr.sg_list = &piece;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        static_cast<void>(srq_ != nullptr ? ibv_post_srq_recv(srq_, &wr, &bad)
                                          : ibv_post_recv(owner_, &wr, &bad));
    }
    [[nodiscard]] int give_rights(unsigned access) {
        ibv_qp_attr attributes{};
        attributes.qp_access_flags = access;
        return soft::modify_qp(owner_, &attributes, IBV_QP_ACCESS_FLAGS);
    }
    void rarely() {
        switch (input_.below(5)) {
            case 0:
                static_cast<void>(to_state(owner_, IBV_QPS_ERR));
                broken_ = true;
                break;
            case 1:
                static_cast<void>(give_rights(input_.below(2) == 0 ? 0 : IBV_ACCESS_REMOTE_READ));
                break;
            case 2: {  // a registration that ends, perhaps while it is copied from
                ibv_mr*& mr = world->granted.mr;
                require(soft::dereg_mr(mr) == 0, "memory can be deregistered");
                mr = soft::reg_mr(world->pd, world->granted.memory, buffer_bytes,
                                  world->granted.address(), IBV_ACCESS_LOCAL_WRITE | remote_access);
                require(mr != nullptr, "and registered");
                break;
            }
            case 3: ::usleep(input_.below(4) * 20); break;
            default: {
                ibv_wc wc;
                static_cast<void>(ibv_poll_cq(world->cq, 1, &wc));
                break;
            }
        }
    }

    Input& input_;
    ibv_srq* srq_ = nullptr;
    ibv_qp* asker_ = nullptr;
    ibv_qp* owner_ = nullptr;
    std::shared_ptr<soft::PeerNode> peer_;
    soft::Block block_;
    bool broken_ = false;
};

void make_world() {
    world = new World;
    World& w = *world;
    w.context = soft::open_device(soft::device_list(nullptr)[0]);
    require(w.context != nullptr, "the device can be opened");
    w.pd = soft::alloc_pd(w.context);
    w.other_pd = soft::alloc_pd(w.context);
    w.cq = soft::create_cq(w.context, 256, nullptr, nullptr, 0);
    w.granted = make_buffer(w.pd, remote_access);
    w.received = make_buffer(w.pd, 0);
    w.writable = make_buffer(w.pd, IBV_ACCESS_REMOTE_WRITE);
    w.secret = make_buffer(w.pd, 0);
    w.foreign = make_buffer(w.other_pd, remote_access);
    w.gone = make_buffer(w.pd, remote_access);
    require(::mprotect(w.gone.memory, buffer_bytes, PROT_NONE) == 0, "memory can be taken away");
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    using namespace millrace;
    fuzz::be_a_peer_if_asked();
    fuzz::use_own_fabric();
    ::unsetenv("MILLRACE_REMAP");
    fuzz::make_world();
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace millrace;
    fuzz::Input input{data, size};
    fuzz::Session session{input};
    fuzz::take_steps(input, fuzz::most_steps, [&] { session.step(); });
    return 0;
}
