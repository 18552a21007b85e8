// What the copy service lets a peer do, which writes anything at all into its copy box: no more
// than keys and posted receives give it. The test is the lying peer, in the owner's process.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <vector>

#include "copy_service/copy_service.hpp"
#include "fabric/node.hpp"
#include "layout/copy_box_layout.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/wait.hpp"
#include "process/context.hpp"
#include "process/control_calls.hpp"
#include "process/memory_window.hpp"
#include "process/process.hpp"
#include "queue_pair/queue_pair.hpp"
#include "receives/datagram.hpp"
#include "soft/endpoint.hpp"
#include "soft/shown_tables.hpp"
#include "soft/station.hpp"
#include "system/shared_futex.hpp"

namespace millrace::soft {
namespace {

using namespace std::chrono_literals;
using test::Endpoint;
using test::EndpointOptions;

constexpr std::byte untouched{0x5a};
constexpr std::byte forged{0xbd};

EndpointOptions privately() {
    EndpointOptions options;
    options.shared_memory = false;
    options.access |= IBV_ACCESS_REMOTE_ATOMIC;
    options.qp_access |= IBV_ACCESS_REMOTE_ATOMIC;
    return options;
}

class CopyServiceRights : public testing::Test {
  protected:
    CopyServiceRights() {
        std::memset(pair_.right.memory, static_cast<int>(untouched), pair_.right.options.bytes);
        auto& qp = *static_cast<QueuePair*>(pair_.right.qp);
        peer_ = qp.connection(qp.sends.hold()).peer();
        process().copies().serve(process().listed().hold(), qp.copy_granter(), *peer_, true);
        const std::uint64_t word = qp.block.news->copy_box.load();
        const auto block = peer_->map_block(static_cast<std::uint32_t>(word),
                                            static_cast<std::uint32_t>(word >> 32));
        if (!block || block->size < copy_box_size) throw std::runtime_error{"there is no box"};
        block_ = *block;
        good_.queue_pair = qp.memory.index;
        good_.purpose = static_cast<std::uint32_t>(CopyPurpose::write);
        good_.key = pair_.right.mr->rkey;
        good_.address = pair_.right.address(64);
        good_.bytes = 64;
    }
    ~CopyServiceRights() override { peer_->unmap_block(block_); }

    Process& process() { return *context_of(pair_.right.context)->process; }
    CopyBox& box() { return *reinterpret_cast<CopyBox*>(block_.memory); }
    std::byte* bytes() { return block_.memory + copy_bytes_offset; }

    /// As a peer does it: the service may be reading.
    void put(const CopyQuestion& question) {
        const auto store = [](auto& word, auto value) { std::atomic_ref{word}.store(value); };
        CopyQuestion& shared = box().question;
        store(shared.queue_pair, question.queue_pair);
        store(shared.purpose, question.purpose);
        store(shared.key, question.key);
        store(shared.receive, question.receive);
        store(shared.address, question.address);
        store(shared.bytes, question.bytes);
    }
    /// How the service ends it.
    CopyOutcome ask(const CopyQuestion& question) {
        std::memset(bytes(), static_cast<int>(forged), largest_copy);
        put(question);
        box().state.store(copy_posted);
        CopyBell& bell = process().node().copy_bell();
        bell.rung.fetch_add(1);
        wake_sleepers(bell.rung);
        base::NapParker parker;
        const auto done = [&] { return box().state.load() == copy_done; };
        if (base::wait_until(done, base::Deadline::after(20s), base::WaitPolicy{}, parker) !=
            base::Status::ok) {
            ADD_FAILURE() << "the service does not answer";
        }
        const auto outcome = static_cast<CopyOutcome>(box().outcome.load());
        box().state.store(copy_free);
        return outcome;
    }
    /// Nothing has changed but, perhaps, [begin, begin + length) of the region.
    bool untouched_but(std::size_t begin = 0, std::size_t length = 0) {
        for (std::size_t i = 0; i < pair_.right.options.bytes; ++i) {
            if (pair_.right.memory[i] != untouched && (i < begin || i >= begin + length)) {
                return false;
            }
        }
        return true;
    }
    bool nothing_read() {
        return std::all_of(bytes(), bytes() + largest_copy,
                           [](std::byte value) { return value == forged; });
    }

    test::Pair pair_{privately(), privately()};
    std::shared_ptr<PeerNode> peer_;
    Block block_;
    CopyQuestion good_{};
};

TEST_F(CopyServiceRights, WhatIsGrantedIsDone) {
    EXPECT_EQ(ask(good_), CopyOutcome::ok);
    EXPECT_TRUE(untouched_but(64, 64));
    EXPECT_EQ(pair_.right.memory[64], forged);
    EXPECT_EQ(pair_.right.memory[127], forged);
    CopyQuestion reading = good_;
    reading.purpose = static_cast<std::uint32_t>(CopyPurpose::read);
    reading.address = pair_.right.address(0);
    EXPECT_EQ(ask(reading), CopyOutcome::ok);
    EXPECT_EQ(bytes()[0], untouched);
    EXPECT_EQ(bytes()[63], untouched);
    EXPECT_EQ(bytes()[64], forged);
}

TEST_F(CopyServiceRights, NothingOutsideTheRegionIsReached) {
    const std::uint64_t begin = pair_.right.address(0);
    const std::uint64_t end = begin + pair_.right.options.bytes;
    std::vector<std::byte> elsewhere(64, untouched);
    const auto heap = reinterpret_cast<std::uint64_t>(elsewhere.data());
    for (const auto purpose : {CopyPurpose::write, CopyPurpose::read, CopyPurpose::atomic_write,
                               CopyPurpose::atomic_read, CopyPurpose::receive}) {
        for (const std::uint64_t address :
             {begin - 1, begin - 8, end - 7, end, heap, std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
            CopyQuestion question = good_;
            question.purpose = static_cast<std::uint32_t>(purpose);
            question.address = address;
            question.bytes = 8;
            EXPECT_EQ(ask(question), CopyOutcome::refused)
                << static_cast<int>(purpose) << ' ' << address - begin;
            EXPECT_TRUE(nothing_read());
        }
    }
    EXPECT_TRUE(untouched_but());
    EXPECT_EQ(elsewhere, std::vector<std::byte>(64, untouched));
}

TEST_F(CopyServiceRights, SizesThatMakeNoSenseAreRefused) {
    for (const std::uint32_t bytes : {0U, std::uint32_t{largest_copy} + 1, ~0U, 1U << 31}) {
        CopyQuestion question = good_;
        question.bytes = bytes;
        EXPECT_EQ(ask(question), CopyOutcome::refused) << bytes;
    }
    CopyQuestion question = good_;
    for (const std::uint32_t purpose : {5U, 6U, 1U << 31, ~0U}) {
        question.purpose = purpose;
        EXPECT_EQ(ask(question), CopyOutcome::refused) << purpose;
    }
    EXPECT_TRUE(untouched_but());
}

TEST_F(CopyServiceRights, AnAtomicIsOfEightAlignedBytes) {
    CopyQuestion question = good_;
    question.purpose = static_cast<std::uint32_t>(CopyPurpose::atomic_write);
    question.bytes = 16;
    EXPECT_EQ(ask(question), CopyOutcome::refused);
    question.bytes = 8;
    question.address += 4;
    EXPECT_EQ(ask(question), CopyOutcome::refused);
    question.address += 4;
    EXPECT_EQ(ask(question), CopyOutcome::ok);
    EXPECT_TRUE(untouched_but(72, 8));
}

TEST_F(CopyServiceRights, KeysThatAreNotThisQueuePairsAreNone) {
    Endpoint& right = pair_.right;
    ibv_pd* const other = alloc_pd(right.context);
    ibv_mr* const foreign =
        reg_mr(other, right.memory, right.options.bytes, right.address(), right.options.access);
    ibv_mr* const local_only = reg_mr(right.pd, right.memory, right.options.bytes, right.address(),
                                      IBV_ACCESS_LOCAL_WRITE);
    ASSERT_TRUE(foreign != nullptr && local_only != nullptr);
    for (const std::uint32_t key :
         {foreign->rkey, local_only->rkey, good_.key + 1, good_.key ^ 0x100, 0U, ~0U}) {
        for (const auto purpose : {CopyPurpose::write, CopyPurpose::read}) {
            CopyQuestion question = good_;
            question.key = key;
            question.purpose = static_cast<std::uint32_t>(purpose);
            EXPECT_EQ(ask(question), CopyOutcome::refused) << key;
            EXPECT_TRUE(nothing_read());
        }
    }
    EXPECT_TRUE(untouched_but());
    EXPECT_EQ(dereg_mr(foreign), 0);
    EXPECT_EQ(dereg_mr(local_only), 0);
    EXPECT_EQ(dealloc_pd(other), 0);
}

TEST_F(CopyServiceRights, OnlyThePeersOwnQueuePairIsGoodForIt) {
    Endpoint stranger{privately()};
    CopyQuestion question = good_;
    question.queue_pair = static_cast<QueuePair*>(stranger.qp)->memory.index;
    EXPECT_EQ(ask(question), CopyOutcome::not_connected);
    question.queue_pair = ~0U;
    EXPECT_EQ(ask(question), CopyOutcome::not_connected);
    EXPECT_TRUE(untouched_but());
}

TEST_F(CopyServiceRights, OnlyWhatWasPostedIsReceivedInto) {
    ASSERT_EQ(pair_.right.receive(1, 1000, 100), 0);
    CopyQuestion question = good_;
    question.purpose = static_cast<std::uint32_t>(CopyPurpose::receive);
    question.receive = first_position;
    question.bytes = 100;
    for (const std::size_t offset : {0U, 999U, 1001U, 5000U}) {
        question.address = pair_.right.address(offset);
        EXPECT_EQ(ask(question), CopyOutcome::refused) << offset;
    }
    question.address = pair_.right.address(1000);
    for (const std::uint32_t position : {first_position - 1, first_position + 1, 0U, ~0U >> 1}) {
        question.receive = position;
        EXPECT_EQ(ask(question), CopyOutcome::refused) << position;
    }
    EXPECT_TRUE(untouched_but());
    question.receive = first_position;
    EXPECT_EQ(ask(question), CopyOutcome::ok);
    EXPECT_TRUE(untouched_but(1000, 100));
}

TEST_F(CopyServiceRights, ASenderOfDatagramsFillsPostedReceivesAndNothingElse) {
    test::StationOptions options;
    options.shared_memory = false;
    test::Station station{options};
    std::memset(station.memory, static_cast<int>(untouched), station.options.bytes);
    ibv_qp* const public_qp = station.datagram();
    auto& qp = *static_cast<QueuePair*>(public_qp);
    ASSERT_EQ(station.receive(public_qp, 1, 4096, 256), 0);
    CopyQuestion question = good_;
    question.queue_pair = qp.memory.index;
    question.purpose = static_cast<std::uint32_t>(CopyPurpose::receive);
    question.receive = 0;
    question.address = reinterpret_cast<std::uint64_t>(station.memory) + 4096;
    question.bytes = 256;
    EXPECT_EQ(ask(question), CopyOutcome::not_connected) << "it has not said that it sends there";
    process().copies().serve_sender(process().listed().hold(), qp.copy_granter(), peer_);
    const std::uint64_t word = qp.datagram->senders().copy_box(peer_->number()).load();
    EXPECT_EQ(word, make_copy_box_word(block_.generation, block_.index)) << "one for each node";
    EXPECT_EQ(ask(question), CopyOutcome::ok);
    EXPECT_EQ(station.memory[4096], forged);
    EXPECT_EQ(station.memory[4096 + 255], forged);
    EXPECT_EQ(station.memory[4096 + 256], untouched);
    const auto refused = [&](auto change) {
        CopyQuestion other = question;
        change(other);
        return ask(other) == CopyOutcome::refused;
    };
    EXPECT_TRUE(refused([](CopyQuestion& other) { ++other.bytes; }));
    EXPECT_TRUE(refused([](CopyQuestion& other) { --other.address; }));
    EXPECT_TRUE(refused([](CopyQuestion& other) { other.receive = 1; }));
    for (const auto purpose : {CopyPurpose::write, CopyPurpose::read, CopyPurpose::atomic_write}) {
        EXPECT_TRUE(refused([&](CopyQuestion& other) {
            other.purpose = static_cast<std::uint32_t>(purpose);
            other.key = station.mr->rkey;
            other.bytes = 8;
        }));
    }
    EXPECT_EQ(test::to_state(public_qp, IBV_QPS_RESET), 0);
    EXPECT_EQ(ask(question), CopyOutcome::not_connected);
    EXPECT_EQ(qp.datagram->senders().copy_box(peer_->number()).load(), 0U);
    EXPECT_EQ(ask(good_), CopyOutcome::ok) << "what it may elsewhere stays";
}

TEST_F(CopyServiceRights, EndWithTheQueuePairsState) {
    ASSERT_EQ(pair_.right.to_state(IBV_QPS_ERR), 0);
    EXPECT_EQ(ask(good_), CopyOutcome::not_connected);
    EXPECT_TRUE(untouched_but());
}

TEST_F(CopyServiceRights, EndWithTheRegistration) {
    ASSERT_EQ(dereg_mr(pair_.right.mr), 0);
    pair_.right.mr = nullptr;
    EXPECT_EQ(ask(good_), CopyOutcome::refused);
    EXPECT_TRUE(untouched_but());
}

TEST_F(CopyServiceRights, AForgedTableGivesNone) {
    std::vector<std::byte> secret(64, untouched);
    const std::uint32_t free_key = make_key(index_of_key(good_.key) + 1000, 0x101);
    RegionEntry* const table = test::shown_regions();
    ASSERT_NE(table, nullptr);
    const RegionEntry& registered = table[index_of_key(good_.key)];
    ASSERT_TRUE(is_word_of(registered.key_word.load(), good_.key)) << "that is the table";
    RegionEntry& entry = table[index_of_key(free_key)];
    entry.iova = entry.address = reinterpret_cast<std::uint64_t>(secret.data());
    entry.length = secret.size();
    entry.access = registered.access;
    entry.pd = registered.pd;
    entry.key_word.store(make_key_word(free_key, 1));
    for (const auto purpose : {CopyPurpose::write, CopyPurpose::read}) {
        CopyQuestion question = good_;
        question.purpose = static_cast<std::uint32_t>(purpose);
        question.key = free_key;
        question.address = entry.address;
        question.bytes = 64;
        EXPECT_EQ(ask(question), CopyOutcome::refused);
        EXPECT_TRUE(nothing_read());
    }
    EXPECT_EQ(secret, std::vector<std::byte>(64, untouched));
    // Nor does it widen a region that there is.
    table[index_of_key(good_.key)].length = ~std::uint64_t{0} >> 1;
    CopyQuestion question = good_;
    question.address = pair_.right.address(0) + pair_.right.options.bytes;
    EXPECT_EQ(ask(question), CopyOutcome::refused);
    EXPECT_EQ(ask(good_), CopyOutcome::ok);
    entry.key_word.store(0);
}

TEST_F(CopyServiceRights, AWindowThatThePeerGaveUpStaysSoWhenItsRegionIsGone) {
    Endpoint& right = pair_.right;
    constexpr int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
    ibv_mr* const region =
        reg_mr(right.pd, right.memory, right.options.bytes, right.address(), all);
    ibv_mw* const window = soft::alloc_mw(right.pd, IBV_MW_TYPE_2);
    ASSERT_TRUE(region != nullptr && window != nullptr);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = window;
    wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    wr.bind_mw.bind_info = {region, right.address(), right.options.bytes, IBV_ACCESS_REMOTE_WRITE};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(right.qp, &wr, &bad), 0);
    const auto bound = right.complete();
    ASSERT_TRUE(bound && bound->status == IBV_WC_SUCCESS);
    CopyQuestion question = good_;
    question.key = wr.bind_mw.rkey;
    EXPECT_EQ(ask(question), CopyOutcome::ok);
    // As a SEND with invalidate does it; and then the peer takes that back.
    std::atomic<std::uint64_t>& word = static_cast<QueuePair*>(right.qp)->block.windows[0];
    const std::uint64_t before = word.exchange(0);
    ASSERT_TRUE(is_word_of(before, question.key));
    ASSERT_EQ(dereg_mr(region), 0);
    std::memset(right.memory, static_cast<int>(untouched), right.options.bytes);
    word.store(before);
    EXPECT_EQ(ask(question), CopyOutcome::refused);
    EXPECT_TRUE(untouched_but());
    EXPECT_EQ(dealloc_mw(window), 0);
}

TEST_F(CopyServiceRights, WhatTheQueuePairDoesNotGrantItsRegionDoesNotEither) {
    ibv_qp_attr attributes{};
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ;
    ASSERT_EQ(modify_qp(pair_.right.qp, &attributes, IBV_QP_ACCESS_FLAGS), 0);
    EXPECT_EQ(ask(good_), CopyOutcome::refused);
    EXPECT_TRUE(untouched_but());
    CopyQuestion reading = good_;
    reading.purpose = static_cast<std::uint32_t>(CopyPurpose::read);
    EXPECT_EQ(ask(reading), CopyOutcome::ok);
}

TEST_F(CopyServiceRights, MemoryThatIsNotThereIsAnErrorAndNoSignal) {
    ASSERT_EQ(munmap(pair_.right.memory, pair_.right.options.bytes), 0);
    EXPECT_EQ(ask(good_), CopyOutcome::unmapped);
    pair_.right.memory = static_cast<std::byte*>(
        mmap(pair_.right.memory, pair_.right.options.bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
}

TEST_F(CopyServiceRights, RubbishReachesNothingAndTheServiceGoesOn) {
    std::mt19937_64 random{7};
    const std::uint64_t begin = pair_.right.address(0);
    const std::uint64_t end = begin + pair_.right.options.bytes;
    for (int i = 0; i < 2000; ++i) {
        CopyQuestion question = good_;
        auto* const words = reinterpret_cast<std::uint32_t*>(&question);
        for (std::size_t w = 0; w < 8; ++w) {
            if (random() % 3 == 0) words[w] = static_cast<std::uint32_t>(random());
        }
        if (random() % 2 == 0) question.address = begin + random() % (2 * (end - begin)) - 4096;
        std::memset(pair_.right.memory, static_cast<int>(untouched), pair_.right.options.bytes);
        const CopyOutcome outcome = ask(question);
        const bool right = outcome == CopyOutcome::ok && question.key == good_.key &&
                           question.address >= begin && question.address < end &&
                           question.bytes <= end - question.address;
        ASSERT_TRUE(right || outcome != CopyOutcome::ok);
        ASSERT_TRUE(
            untouched_but(right ? question.address - begin : 0, right ? question.bytes : 0));
    }
    EXPECT_EQ(ask(good_), CopyOutcome::ok);
}

TEST_F(CopyServiceRights, AnAskerThatTakesItBackAndAsksAgainAllTheTimeBreaksNothing) {
    for (int i = 0; i < 20000; ++i) {
        CopyQuestion question = good_;
        question.bytes = static_cast<std::uint32_t>(i);
        put(question);
        box().state.store(copy_posted);
        process().node().copy_bell().rung.fetch_add(1);
        if (i % 100 == 0) wake_sleepers(process().node().copy_bell().rung);
        box().state.store(static_cast<std::uint32_t>(i % 5));
    }
    box().state.store(copy_free);
    base::NapParker parker;
    const auto rests = [&] { return (process().copies().working() & 1) == 0; };
    ASSERT_EQ(base::wait_until(rests, base::Deadline::after(20s), base::WaitPolicy{}, parker),
              base::Status::ok);
    EXPECT_TRUE(untouched_but(64, 20000));
    EXPECT_EQ(ask(good_), CopyOutcome::ok);
}

}  // namespace
}  // namespace millrace::soft
