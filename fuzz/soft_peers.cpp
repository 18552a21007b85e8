// Implementation of soft_peers.hpp.
#include "fuzz/soft_peers.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "fabric/fabric_names.hpp"
#include "fuzz/target.hpp"
#include "layout/layout.hpp"
#include "millrace/soft/device.hpp"
#include "process/domains.hpp"
#include "queue_pair/queue_pair.hpp"
#include "receives/receive_pool.hpp"
#include "tests/support/queue_pair_steps.hpp"

namespace millrace::fuzz {
namespace {

constexpr const char* peer_variable = "MILLRACE_FUZZ_PEER";  ///< the descriptor to write facts to
constexpr unsigned access_all =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/// Where a block of this process lies in its node's memory.
std::uint64_t offset_of(const std::byte* tables, std::uint32_t index) {
    return reinterpret_cast<const soft::DirectoryEntry*>(tables + soft::directory_offset)[index]
        .block_offset;
}

/// Which descriptor of the process is the memory file of that name, as a path.
std::string find_file(pid_t pid, const std::string& name) {
    const std::string wanted = "/memfd:" + name + " (deleted)";
    for (const auto& entry : std::filesystem::directory_iterator{fmt::format("/proc/{}/fd", pid)}) {
        std::error_code ignored;
        if (std::filesystem::read_symlink(entry.path(), ignored).string() == wanted) {
            return entry.path();
        }
    }
    require(false, "a node's file is found");
    return {};
}

std::byte* map_file(pid_t pid, const std::string& name, std::size_t bytes, int protection) {
    const bool writable = (protection & PROT_WRITE) != 0;
    const int file =
        ::open(find_file(pid, name).c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    void* const memory = ::mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
    require(memory != MAP_FAILED, "a node's file can be mapped");
    ::close(file);
    return static_cast<std::byte*>(memory);
}

/// Nobody can write the tables that the device has made. So a peer that lies about them shows a
/// copy in their place.
void show_tables_that_can_be_written(const std::string& name, const std::byte* tables) {
    const int shown = std::stoi(std::filesystem::path{find_file(::getpid(), name)}.filename());
    const int copy = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    require(copy >= 0 && ::ftruncate(copy, soft::tables_size) == 0 &&
                ::fcntl(copy, F_ADD_SEALS, F_SEAL_SHRINK) == 0,
            "there is a file for a copy of the tables");
    void* const memory =
        ::mmap(nullptr, soft::tables_size, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
    require(memory != MAP_FAILED, "and it can be mapped");
    std::memcpy(memory, tables, soft::tables_size);
    require(::dup3(copy, shown, O_CLOEXEC) == shown && ::close(copy) == 0, "and shown");
}

[[noreturn]] void be_a_peer(int out) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ibv_context* const context = soft::open_device(soft::device_list(nullptr)[0]);
    require(context != nullptr, "a peer opens the device");
    ibv_pd* const pd = soft::alloc_pd(context);
    ibv_cq* const cq = soft::create_cq(context, 256, nullptr, nullptr, 0);
    ibv_srq_init_attr srq_attributes{};
    srq_attributes.attr = {16, 2, 0};
    ibv_srq* const srq = soft::create_srq(pd, &srq_attributes);
    PeerFacts facts;
    int descriptor = -1;
    std::byte* const shared = map_shareable(peer_memory, descriptor);
    std::byte* const plain = static_cast<std::byte*>(
        ::mmap(nullptr, peer_memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const auto enlist = [&](std::byte* memory) {
        ibv_mr* const mr = soft::reg_mr(pd, memory, peer_memory,
                                        reinterpret_cast<std::uint64_t>(memory), access_all);
        require(mr != nullptr, "a peer registers memory");
        return mr->rkey;
    };
    facts.shared = reinterpret_cast<std::uint64_t>(shared);
    facts.plain = reinterpret_cast<std::uint64_t>(plain);
    facts.shared_key = enlist(shared);
    facts.plain_key = enlist(plain);
    facts.shared_descriptor = static_cast<std::uint32_t>(descriptor);
    facts.pd = static_cast<soft::ProtectionDomain*>(pd)->number;
    const std::byte* tables = nullptr;
    std::string tables_name;
    for (std::uint32_t kind = 0; kind < kinds; ++kind) {
        ibv_qp* const qp = make_queue_pair(static_cast<Kind>(kind), pd, cq, srq);
        auto& made = *static_cast<soft::QueuePair*>(qp);
        if (tables == nullptr) {
            tables_name =
                soft::tables_name(std::getenv("MILLRACE_FABRIC"), soft::node_of_qpn(qp->qp_num));
            tables = map_file(::getpid(), tables_name, soft::tables_size, PROT_READ);
        }
        PeerFacts::Pair& pair = facts.pairs[kind];
        pair.qpn = qp->qp_num;
        pair.generation = made.memory.generation;
        pair.offset = offset_of(tables, made.memory.index);
        pair.size = made.memory.size;
        facts.high_water = std::max(facts.high_water, pair.offset + pair.size);
        if (made.pool != nullptr) {
            pair.pool_offset = offset_of(tables, made.pool->block().index);
            pair.pool_size = made.pool->block().size;
            facts.high_water = std::max(facts.high_water, pair.pool_offset + pair.pool_size);
        }
        for (std::uint64_t i = 0; i < 4; ++i) {
            ibv_sge piece{facts.shared + 4096 + i * 256, 256, facts.shared_key};
            ibv_recv_wr wr{};
            wr.wr_id = i;
            wr.sg_list = &piece;
            wr.num_sge = 1;
            ibv_recv_wr* bad = nullptr;
            const int error = kind == kind_shared ? ibv_post_srq_recv(srq, &wr, &bad)
                                                  : ibv_post_recv(qp, &wr, &bad);
            require(error == 0, "a peer posts its receives");
        }
    }
    show_tables_that_can_be_written(tables_name, tables);
    require(::write(out, &facts, sizeof facts) == ssize_t{sizeof facts}, "a peer tells its facts");
    for (;;) ::pause();
}

}  // namespace

std::byte* map_shareable(std::size_t bytes, int& descriptor) {
    descriptor = ::memfd_create("fuzz-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void* memory = MAP_FAILED;
    if (descriptor >= 0 && ::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 &&
        ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
        memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    }
    require(memory != MAP_FAILED, "there is memory to share");
    return static_cast<std::byte*>(memory);
}

ibv_qp* make_queue_pair(Kind kind, ibv_pd* pd, ibv_cq* cq, ibv_srq* srq) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = kind == kind_uc ? IBV_QPT_UC : kind == kind_ud ? IBV_QPT_UD : IBV_QPT_RC;
    init.srq = kind == kind_shared ? srq : nullptr;
    init.cap = {8, 8, 2, 2, 64};
    ibv_qp* const qp = soft::create_qp(pd, &init);
    require(qp != nullptr, "a queue pair can be made");
    const test::QueuePairWay way{.access = access_all | IBV_ACCESS_REMOTE_ATOMIC, .qkey = 17};
    require(step_to_init(qp->qp_type, way).take(qp) == 0, "RESET to INIT");
    return qp;
}

void be_a_peer_if_asked() {
    if (const char* const out = std::getenv(peer_variable); out != nullptr) {
        be_a_peer(std::atoi(out));
    }
}

Peer::Peer() {
    int ends[2];
    require(::pipe(ends) == 0, "a pipe");
    pid_ = ::fork();
    require(pid_ >= 0, "a second process");
    if (pid_ == 0) {
        ::setenv(peer_variable, std::to_string(ends[1]).c_str(), 1);
        ::execl("/proc/self/exe", "fuzz_peer", static_cast<char*>(nullptr));
        ::_exit(127);
    }
    ::close(ends[1]);
    require(::read(ends[0], &facts_, sizeof facts_) == ssize_t{sizeof facts_},
            "the peer says where it is");
    ::close(ends[0]);
    const char* const fabric = std::getenv("MILLRACE_FABRIC");
    const std::uint32_t number = soft::node_of_qpn(facts_.pairs[0].qpn);
    constexpr int writable = PROT_READ | PROT_WRITE;
    tables_ = map_file(pid_, soft::tables_name(fabric, number), soft::tables_size, writable);
    node_ = map_file(pid_, soft::blocks_name(fabric, number), facts_.high_water, writable);
    const std::string path = fmt::format("/proc/{}/fd/{}", pid_, facts_.shared_descriptor);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* const memory = ::mmap(nullptr, peer_memory, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    require(file >= 0 && memory != MAP_FAILED, "the peer's memory can be mapped");
    ::close(file);
    shared_ = static_cast<std::byte*>(memory);
}

}  // namespace millrace::fuzz
