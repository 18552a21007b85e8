// Imports of what another process has opened: its protection domains, its shared regions and its
// device memory become this process's, over the same bytes.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "soft/endpoint.hpp"
#include "support/child_process.hpp"

namespace millrace::test {
namespace {

constexpr unsigned all_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

constexpr std::chrono::seconds long_enough{60};

std::string errno_or(const void* made) { return made != nullptr ? "0" : std::to_string(errno); }

/// Imports what it is told to and makes a queue pair with it, of which the test has the peer.
MILLRACE_CHILD(importer) {
    const auto number = [&](std::size_t i) {
        return static_cast<std::uint32_t>(std::stoul(arguments.at(i)));
    };
    errno = 0;
    ibv_context* const context = soft::import_device(static_cast<int>(number(0)));
    say(errno_or(context));
    if (context == nullptr) return 0;
    errno = 0;
    ibv_pd* const pd = soft::import_pd(context, number(1));
    say(errno_or(pd));
    if (pd == nullptr) return soft::close_device(context);
    errno = 0;
    ibv_mr* mr = soft::import_mr(pd, number(2));
    say(errno_or(mr));
    // An endpoint whose queue pair is the imported domain's.
    Endpoint end;
    soft::destroy_qp(end.qp);
    ibv_cq* const cq = soft::create_cq(context, 64, nullptr, nullptr, 0);
    ibv_cq* const other_cq = std::exchange(end.cq, cq);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {16, 16, 4, 4, 64};
    end.qp = soft::create_qp(pd, &init);
    if (end.qp == nullptr) return 1;
    say(std::to_string(end.qp->qp_num) + ' ' + std::to_string(mr == nullptr ? 0 : mr->rkey));
    std::vector<ibv_mr*> others;
    while (const auto line = hear()) {
        std::istringstream words{*line};
        std::string verb;
        std::uint64_t a = 0;
        std::uint64_t b = 0;
        std::uint64_t c = 0;
        std::uint64_t d = 0;
        words >> verb >> a >> b >> c >> d;
        if (verb == "connect") {
            say(std::to_string(end.connect(static_cast<std::uint32_t>(a))));
        } else if (verb == "write") {  // address length remote key: from the imported region
            ibv_sge piece{a, static_cast<std::uint32_t>(b), mr->lkey};
            const int error = end.post(IBV_WR_RDMA_WRITE, 1, {piece}, IBV_SEND_SIGNALED, c,
                                       static_cast<std::uint32_t>(d));
            const auto wc = end.complete(long_enough);
            say(std::to_string(error) + ' ' + std::to_string(wc ? wc->status : -1));
        } else if (verb == "facts") {
            say(std::to_string(mr->handle) + ' ' + std::to_string(mr->length) + ' ' +
                (mr->addr == nullptr ? "none" : "some") + ' ' + std::to_string(pd->handle));
        } else if (verb == "again") {  // the same handles: the same domain, the same bytes
            ibv_pd* const twin = soft::import_pd(context, number(1));
            ibv_mr* const second = soft::import_mr(twin, number(2));
            others.push_back(second);
            say(std::to_string(second->rkey));
            soft::unimport_pd(twin);
        } else if (verb == "own") {  // a region of its own, in the imported domain
            auto* const memory = static_cast<std::byte*>(map_shareable(4096));
            ibv_mr* const own = soft::reg_mr(pd, memory, 4096, 0, all_access);
            others.push_back(own);
            say(std::to_string(own->rkey));
        } else if (verb == "device_memory") {  // handle
            errno = 0;
            ibv_dm* const memory = soft::import_dm(context, static_cast<std::uint32_t>(a));
            say(errno_or(memory));
            if (memory == nullptr) continue;
            std::array<char, 8> bytes{"far end"};
            say(std::to_string(ibv_memcpy_to_dm(memory, 16, bytes.data(), bytes.size())));
            soft::unimport_dm(memory);
        } else if (verb == "import_mr") {  // handle
            errno = 0;
            ibv_mr* const other = soft::import_mr(pd, static_cast<std::uint32_t>(a));
            say(errno_or(other));
            if (other != nullptr) soft::unimport_mr(other);
        } else if (verb == "import_pd") {  // handle
            errno = 0;
            ibv_pd* const other = soft::import_pd(context, static_cast<std::uint32_t>(a));
            say(errno_or(other));
            if (other != nullptr) soft::unimport_pd(other);
        } else if (verb == "unimport_mr") {
            soft::unimport_mr(mr);
            mr = nullptr;
            say("done");
        }
    }
    if (mr != nullptr) soft::unimport_mr(mr);
    for (ibv_mr* const other : others) soft::dereg_mr(other);
    soft::destroy_qp(std::exchange(end.qp, nullptr));
    soft::destroy_cq(std::exchange(end.cq, other_cq));
    soft::unimport_pd(pd);
    return soft::close_device(context);
}

/// A device with a region, and a process that imports both.
struct Loan {
    explicit Loan(const EndpointOptions& options = {}, std::vector<std::string> environment = {})
        : end{options},
          descriptor{dup(end.context->cmd_fd)},
          child{ChildProcess::start("importer",
                                    {std::to_string(descriptor), std::to_string(end.pd->handle),
                                     std::to_string(end.mr->handle)},
                                    std::move(environment))} {
        close(descriptor);  // the child has it
    }

    std::string hear() { return child.read_line().value_or("nothing"); }
    std::string ask(const std::string& command) {
        child.write_line(command);
        return hear();
    }
    /// All three are imported; `peer` becomes the peer of the child's queue pair.
    void connect(Endpoint& peer) {
        ASSERT_EQ(hear(), "0");
        ASSERT_EQ(hear(), "0");
        ASSERT_EQ(hear(), "0");
        std::uint32_t queue_pair = 0;
        std::istringstream{hear()} >> queue_pair >> rkey;
        ASSERT_EQ(peer.to_init(), 0);
        ASSERT_EQ(ask("connect " + std::to_string(peer.qp->qp_num)), "0");
        ASSERT_EQ(peer.to_rtr(queue_pair), 0);
        ASSERT_EQ(peer.to_rts(), 0);
    }
    void end_child() {
        child.close_input();
        EXPECT_TRUE(child.wait().success());
    }

    Endpoint end;
    int descriptor;
    ChildProcess child;
    std::uint32_t rkey = 0;
};

ibv_wc_status write_to(Endpoint& from, std::uint64_t address, std::uint32_t key) {
    EXPECT_EQ(from.write(1, 0, 64, address, key), 0);
    const auto wc = from.complete(long_enough);
    return wc ? wc->status : IBV_WC_GENERAL_ERR;
}

TEST(ImportBetweenProcesses, OfASharedRegionReachesItsBytesAtItsAddresses) {
    Loan loan;
    Endpoint peer;
    loan.connect(peer);
    EXPECT_EQ(loan.ask("facts"), std::to_string(loan.end.mr->handle) + ' ' +
                                     std::to_string(loan.end.mr->length) + " none " +
                                     std::to_string(loan.end.pd->handle));
    // Into it, through the importer's queue pair: the bytes are the original's.
    std::memset(peer.memory, 0x37, 64);
    EXPECT_EQ(write_to(peer, loan.end.address(256), loan.rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(loan.end.memory + 256, peer.memory, 64), 0);
    // Out of it, by the original's addresses.
    std::memset(loan.end.memory, 0x73, 64);
    EXPECT_EQ(loan.ask("write " + std::to_string(loan.end.address()) + " 64 " +
                       std::to_string(peer.address(512)) + ' ' + std::to_string(peer.mr->rkey)),
              "0 0");
    EXPECT_EQ(std::memcmp(peer.memory + 512, loan.end.memory, 64), 0);
    loan.end_child();
}

TEST(ImportBetweenProcesses, GivesOneDomainForOneHandle) {
    Loan loan;
    Endpoint peer;
    loan.connect(peer);
    // A second import, and what is registered in the imported domain, are of its queue pair's.
    const auto again = static_cast<std::uint32_t>(std::stoul(loan.ask("again")));
    const auto own = static_cast<std::uint32_t>(std::stoul(loan.ask("own")));
    EXPECT_EQ(write_to(peer, loan.end.address(), again), IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(loan.end.memory, peer.memory, 64), 0);
    EXPECT_EQ(write_to(peer, 0, own), IBV_WC_SUCCESS);
    loan.end_child();
}

TEST(ImportBetweenProcesses, ProtectsAsTheOriginalWasMade) {
    EndpointOptions options;
    options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    Loan loan{options};
    Endpoint peer;
    loan.connect(peer);
    EXPECT_EQ(write_to(peer, loan.end.address(), loan.rkey), IBV_WC_REM_ACCESS_ERR);
    loan.end_child();
}

TEST(ImportBetweenProcesses, KeepsARegionToItsOwnDomain) {
    Loan loan;
    // The original's region is in another domain than the one that is imported for the queue pair.
    Loan other;
    for (Loan* const one : {&loan, &other}) {
        for (int i = 0; i < 4; ++i) static_cast<void>(one->hear());
    }
    EXPECT_EQ(loan.ask("import_mr " + std::to_string(other.end.mr->handle)), std::to_string(ENOENT))
        << "it is of another device that the same process opened";
    ibv_pd* const elsewhere = soft::alloc_pd(loan.end.context);
    ibv_mr* const mr = soft::reg_mr(elsewhere, loan.end.memory, 64, 0, all_access);
    ASSERT_NE(mr, nullptr);
    const std::string import = "import_mr " + std::to_string(mr->handle);
    EXPECT_EQ(loan.ask(import), "0");
    EXPECT_EQ(soft::dereg_mr(mr), 0);
    EXPECT_EQ(loan.ask(import), std::to_string(ENOENT));
    EXPECT_EQ(loan.ask("import_pd " + std::to_string(elsewhere->handle)), "0");
    const std::uint32_t gone = elsewhere->handle;
    EXPECT_EQ(soft::dealloc_pd(elsewhere), 0);
    EXPECT_EQ(loan.ask("import_pd " + std::to_string(gone)), std::to_string(ENOENT));
    EXPECT_EQ(loan.ask("import_pd 0"), std::to_string(ENOENT));
    loan.end_child();
    other.end_child();
}

TEST(ImportBetweenProcesses, RefusesPrivateMemory) {
    EndpointOptions options;
    options.shared_memory = false;
    Loan loan{options};
    EXPECT_EQ(loan.hear(), "0");
    EXPECT_EQ(loan.hear(), "0");
    EXPECT_EQ(loan.hear(), std::to_string(EOPNOTSUPP));
    static_cast<void>(loan.hear());
    loan.end_child();
}

TEST(ImportBetweenProcesses, OutlivesTheOriginal) {
    Endpoint peer;
    auto loan = std::make_unique<Loan>();
    loan->connect(peer);
    const std::uint64_t address = loan->end.address();
    const std::uint32_t rkey = loan->rkey;
    ASSERT_EQ(soft::dereg_mr(loan->end.mr), 0);
    loan->end.mr = nullptr;
    EXPECT_EQ(write_to(peer, address, rkey), IBV_WC_SUCCESS) << "its memory is there";
    EXPECT_EQ(loan->ask("unimport_mr"), "done");
    EXPECT_EQ(write_to(peer, address, rkey), IBV_WC_REM_ACCESS_ERR);
    loan->end_child();
}

TEST(ImportBetweenProcesses, OfDeviceMemoryIsTheSameMemory) {
    Loan loan;
    ibv_alloc_dm_attr attributes{};
    attributes.length = 100;
    ibv_dm* const memory = ibv_alloc_dm(loan.end.context, &attributes);
    ASSERT_NE(memory, nullptr);
    for (int i = 0; i < 4; ++i) static_cast<void>(loan.hear());
    EXPECT_EQ(loan.ask("device_memory " + std::to_string(memory->handle)), "0");
    EXPECT_EQ(loan.hear(), "0");
    std::array<char, 8> seen{};
    EXPECT_EQ(ibv_memcpy_from_dm(seen.data(), memory, 16, seen.size()), 0);
    EXPECT_STREQ(seen.data(), "far end");
    const std::uint32_t handle = memory->handle;
    EXPECT_EQ(ibv_free_dm(memory), 0);
    EXPECT_EQ(loan.ask("device_memory " + std::to_string(handle)), std::to_string(ENOENT));
    loan.end_child();
}

TEST(ImportBetweenProcesses, NeedsOneFabric) {
    Loan loan{{}, {"MILLRACE_FABRIC=elsewhere"}};
    EXPECT_EQ(loan.hear(), std::to_string(ENODEV));
    loan.end_child();
}

}  // namespace
}  // namespace millrace::test
