// Imports within one process: contexts, protection domains, regions and device memory that have
// several handles. What the manual pages of ibv_import_* and ibv_unimport_* say.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>

#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

int duplicate(const ibv_context* context) { return fcntl(context->cmd_fd, F_DUPFD_CLOEXEC, 0); }

bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; }

/// What comes out of a socket that `descriptor` was sent into.
int sent_through_a_socket(int descriptor) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return -1;
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    int received = -1;
    if (sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, MSG_CMSG_CLOEXEC) == 1) {
        std::memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    }
    close(ends[0]);
    close(ends[1]);
    return received;
}

/// A context imported from an endpoint's, with its protection domain and its region.
struct Imported {
    explicit Imported(const Endpoint& from)
        : context{soft::import_device(duplicate(from.context))},
          pd{soft::import_pd(context, from.pd->handle)},
          mr{soft::import_mr(pd, from.mr->handle)} {}

    ibv_context* context;
    ibv_pd* pd;
    ibv_mr* mr;
};

void give_back(const Imported& imported) {
    soft::unimport_mr(imported.mr);
    soft::unimport_pd(imported.pd);
    EXPECT_EQ(soft::close_device(imported.context), 0);
}

TEST(Import, OfADeviceGivesAContextOfItsOwn) {
    Endpoint end;
    ASSERT_GE(end.context->cmd_fd, 0);
    const int descriptor = duplicate(end.context);
    ibv_context* const imported = soft::import_device(descriptor);
    ASSERT_NE(imported, nullptr);
    EXPECT_NE(imported, end.context);
    EXPECT_TRUE(soft::owns(imported));
    EXPECT_EQ(imported->device, end.context->device);
    EXPECT_EQ(imported->cmd_fd, descriptor) << "it is the context's now";
    EXPECT_NE(imported->async_fd, end.context->async_fd);
    ibv_device_attr attributes{};
    EXPECT_EQ(soft::query_device(imported, &attributes), 0);
    ibv_pd* const pd = soft::alloc_pd(imported);
    ASSERT_NE(pd, nullptr);
    EXPECT_NE(pd->handle, end.pd->handle) << "handles are of the opened device, not of a context";
    EXPECT_EQ(soft::dealloc_pd(pd), 0);
    EXPECT_EQ(soft::close_device(imported), 0);
    EXPECT_FALSE(is_open(descriptor));
    EXPECT_TRUE(is_open(end.context->cmd_fd));
}

TEST(Import, KnowsADescriptorThatCameOverASocket) {
    Endpoint end;
    const int descriptor = sent_through_a_socket(end.context->cmd_fd);
    ASSERT_GE(descriptor, 0);
    EXPECT_TRUE(soft::owns_descriptor(descriptor));
    ibv_context* imported = nullptr;
    std::thread{[&] { imported = soft::import_device(descriptor); }}.join();
    ASSERT_NE(imported, nullptr);
    // A context that was imported can be imported from.
    ibv_context* const again = soft::import_device(duplicate(imported));
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(soft::close_device(imported), 0);
    ibv_pd* const pd = soft::import_pd(again, end.pd->handle);
    ASSERT_NE(pd, nullptr);
    soft::unimport_pd(pd);
    EXPECT_EQ(soft::close_device(again), 0);
}

TEST(Import, RefusesADescriptorOfSomethingElse) {
    Endpoint end;
    const int file = memfd_create("something-else", MFD_CLOEXEC);
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    for (const int descriptor : {-1, file, ends[0], end.context->async_fd}) {
        errno = 0;
        EXPECT_EQ(soft::import_device(descriptor), nullptr);
        EXPECT_EQ(errno, EINVAL);
        EXPECT_FALSE(soft::owns_descriptor(descriptor));
    }
    for (const int descriptor : {file, ends[0], ends[1]}) {
        EXPECT_TRUE(is_open(descriptor)) << "it stays the caller's";
        close(descriptor);
    }
}

TEST(Import, RefusesADeviceThatAnotherProcessHasOpen) {
    const Endpoint end;
    const int descriptor = duplicate(end.context);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        errno = 0;
        _exit(soft::import_device(descriptor) == nullptr && errno == ENODEV ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    close(descriptor);
}

TEST(Import, RefusesADescriptorWhoseDeviceIsClosed) {
    ibv_context* const context = soft::open_device(soft::device_list(nullptr)[0]);
    ASSERT_NE(context, nullptr);
    const int descriptor = duplicate(context);
    EXPECT_EQ(soft::close_device(context), 0);
    errno = 0;
    EXPECT_EQ(soft::import_device(descriptor), nullptr);
    EXPECT_EQ(errno, ENODEV);
    close(descriptor);
}

TEST(Import, RefusesHandlesThatAreNot) {
    Endpoint end;
    Endpoint other;  // another opened device, with handles of its own
    ibv_context* const imported = soft::import_device(duplicate(end.context));
    ASSERT_NE(imported, nullptr);
    const auto refused = [](auto* made) { return made == nullptr && errno == ENOENT; };
    errno = 0;
    EXPECT_TRUE(refused(soft::import_pd(imported, 0)));
    errno = 0;
    EXPECT_TRUE(refused(soft::import_pd(imported, ~0U)));
    errno = 0;
    EXPECT_TRUE(refused(soft::import_mr(end.pd, other.mr->handle)));
    errno = 0;
    EXPECT_TRUE(refused(soft::import_dm(imported, 1)));

    ibv_pd* const gone = soft::alloc_pd(end.context);
    const std::uint32_t handle = gone->handle;
    ASSERT_EQ(soft::dealloc_pd(gone), 0);
    errno = 0;
    EXPECT_TRUE(refused(soft::import_pd(imported, handle)));
    ibv_mr* const mr = soft::reg_mr(end.pd, end.memory, 64, 0, IBV_ACCESS_LOCAL_WRITE);
    const std::uint32_t region = mr->handle;
    ASSERT_EQ(soft::dereg_mr(mr), 0);
    errno = 0;
    EXPECT_TRUE(refused(soft::import_mr(end.pd, region)));
    EXPECT_EQ(soft::close_device(imported), 0);
}

TEST(Import, OfARegionHasItsKeysAndNoAddress) {
    Endpoint end;
    const Imported imported{end};
    ASSERT_NE(imported.mr, nullptr);
    EXPECT_EQ(imported.pd->handle, end.pd->handle);
    EXPECT_EQ(imported.mr->handle, end.mr->handle);
    EXPECT_EQ(imported.mr->lkey, end.mr->lkey);
    EXPECT_EQ(imported.mr->rkey, end.mr->rkey);
    EXPECT_EQ(imported.mr->length, end.mr->length);
    EXPECT_EQ(imported.mr->addr, nullptr);
    EXPECT_EQ(imported.mr->context, imported.context);
    EXPECT_EQ(imported.mr->pd, imported.pd);
    give_back(imported);
}

/// A queue pair of an imported context, in an imported protection domain.
struct ImportedQueue {
    ImportedQueue(const Imported& imported, const EndpointOptions& options)
        : cq{soft::create_cq(imported.context, 64, nullptr, nullptr, 0)} {
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {options.send_wr, options.receive_wr, options.sges, options.sges, 64};
        qp = soft::create_qp(imported.pd, &init);
    }
    ibv_cq* cq;
    ibv_qp* qp = nullptr;
};

TEST(Import, OfADomainLetsItsQueuePairsUseTheOriginalsRegions) {
    Endpoint left;
    Endpoint right;
    const Imported imported{left};
    // The left end's queue pair is one of the imported domain; all else of it is the original's.
    const ImportedQueue queue{imported, left.options};
    ASSERT_NE(queue.qp, nullptr);
    ASSERT_EQ(soft::destroy_qp(left.qp), 0);
    ibv_cq* const cq = std::exchange(left.cq, queue.cq);
    left.qp = queue.qp;
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(right.connect(left.qp->qp_num), 0);
    const auto status = [](Endpoint& end) {
        const auto wc = end.complete();
        return wc ? wc->status : IBV_WC_GENERAL_ERR;
    };
    std::memset(left.memory, 0x21, 64);
    // From the original's region, by its key and addresses.
    ASSERT_EQ(left.write(1, 0, 64, right.address(), right.mr->rkey), 0);
    EXPECT_EQ(status(left), IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(right.memory, left.memory, 64), 0);
    // Into it, by the key that the imported handle tells.
    std::memset(right.memory, 0x42, 64);
    ASSERT_EQ(right.write(2, 0, 64, left.address(128), imported.mr->rkey), 0);
    EXPECT_EQ(status(right), IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(left.memory + 128, right.memory, 64), 0);
    // A region made with the imported handle is the original's, too.
    ibv_mr* const made = soft::reg_mr(imported.pd, left.memory + 4096, 64, 0,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ASSERT_NE(made, nullptr);
    ibv_mr* const seen = soft::import_mr(left.pd, made->handle);
    ASSERT_NE(seen, nullptr);
    ASSERT_EQ(right.write(3, 0, 64, 0, seen->rkey), 0);
    EXPECT_EQ(status(right), IBV_WC_SUCCESS);
    soft::unimport_mr(seen);
    EXPECT_EQ(soft::dereg_mr(made), 0);
    // A domain of another number is another domain.
    ibv_pd* const foreign = soft::alloc_pd(imported.context);
    ibv_mr* const elsewhere =
        soft::reg_mr(foreign, left.memory, 64, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ibv_mr* const labelled = soft::import_mr(imported.pd, elsewhere->handle);
    ASSERT_NE(labelled, nullptr) << "any domain of the device may be named";
    ASSERT_EQ(right.write(4, 0, 64, 0, labelled->rkey), 0);
    EXPECT_EQ(status(right), IBV_WC_REM_ACCESS_ERR) << "but it protects as it was made";
    soft::unimport_mr(labelled);
    EXPECT_EQ(soft::dereg_mr(elsewhere), 0);
    EXPECT_EQ(soft::dealloc_pd(foreign), 0);

    ASSERT_EQ(soft::destroy_qp(left.qp), 0);
    left.qp = nullptr;
    EXPECT_EQ(soft::destroy_cq(queue.cq), 0);
    left.cq = cq;
    give_back(imported);
}

TEST(Import, OfADomainIsInUseWhileAnythingIsMadeInItThroughAnyHandle) {
    Endpoint end;
    const Imported imported{end};
    ibv_pd* const pd = soft::alloc_pd(end.context);
    ibv_pd* const twin = soft::import_pd(imported.context, pd->handle);
    ASSERT_NE(twin, nullptr);
    ibv_mr* const mr = soft::reg_mr(twin, end.memory, 64, 0, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(soft::dealloc_pd(pd), EBUSY);
    EXPECT_EQ(soft::dealloc_pd(twin), EBUSY);
    EXPECT_EQ(soft::dereg_mr(mr), 0);
    EXPECT_EQ(soft::dealloc_pd(twin), 0);
    // It is gone for the original, whose handle can only be given back.
    EXPECT_EQ(soft::dealloc_pd(pd), ENOENT);
    errno = 0;
    EXPECT_EQ(soft::reg_mr(pd, end.memory, 64, 0, IBV_ACCESS_LOCAL_WRITE), nullptr);
    EXPECT_EQ(errno, EINVAL);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = end.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {4, 4, 1, 1, 0};
    errno = 0;
    EXPECT_EQ(soft::create_qp(pd, &init), nullptr);
    EXPECT_EQ(errno, EINVAL);
    soft::unimport_pd(pd);
    give_back(imported);
}

TEST(Import, EndsNothingWhenItIsGivenBack) {
    Endpoint left;
    Endpoint right;
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(right.connect(left.qp->qp_num), 0);
    for (int round = 0; round < 3; ++round) {
        give_back(Imported{right});
        ASSERT_EQ(left.write(1, 0, 8, right.address(), right.mr->rkey), 0);
        const auto wc = left.complete();
        ASSERT_TRUE(wc);
        EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    }
}

TEST(Import, OfARegionEndsItForAllWhenItIsDeregistered) {
    Endpoint left;
    Endpoint right;
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(right.connect(left.qp->qp_num), 0);
    const Imported imported{right};
    EXPECT_EQ(soft::dereg_mr(imported.mr), 0);
    ASSERT_EQ(left.write(1, 0, 8, right.address(), right.mr->rkey), 0);
    const auto wc = left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(soft::dereg_mr(right.mr), ENOENT);
    errno = 0;
    EXPECT_EQ(soft::rereg_mr(right.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0),
              IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(errno, ENOENT);
    soft::unimport_mr(right.mr);
    right.mr = nullptr;
    soft::unimport_pd(imported.pd);
    EXPECT_EQ(soft::close_device(imported.context), 0);
}

TEST(Import, MayBeReRegisteredThroughAnyHandle) {
    Endpoint end;
    const Imported imported{end};
    ASSERT_EQ(soft::rereg_mr(imported.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                             IBV_ACCESS_LOCAL_WRITE),
              0);
    EXPECT_NE(imported.mr->rkey, end.mr->rkey) << "the other handle's are no longer true";
    errno = 0;
    EXPECT_EQ(soft::import_mr(end.pd, end.mr->handle), nullptr);
    EXPECT_EQ(errno, ENOENT);
    ibv_mr* const again = soft::import_mr(end.pd, imported.mr->handle);
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(again->rkey, imported.mr->rkey);
    EXPECT_EQ(again->length, end.mr->length);
    soft::unimport_mr(again);
    give_back(imported);
}

TEST(Import, KeepsTheHandleOfADomainForWhatWasMadeWithIt) {
    // As programs do whose destructors run from the outside in.
    Endpoint end;
    const Imported imported{end};
    const ImportedQueue queue{imported, end.options};
    ASSERT_NE(queue.qp, nullptr);
    ibv_mr* const mr = soft::reg_mr(imported.pd, end.memory, 64, 0, IBV_ACCESS_LOCAL_WRITE);
    ibv_ah_attr attributes{};
    attributes.dlid = 1;
    attributes.port_num = 1;
    ibv_ah* const ah = soft::create_ah(imported.pd, &attributes);
    ASSERT_NE(ah, nullptr);
    soft::unimport_mr(imported.mr);
    soft::unimport_pd(imported.pd);
    EXPECT_EQ(soft::close_device(imported.context), 0);
    EXPECT_EQ(soft::destroy_ah(ah), 0);
    EXPECT_EQ(soft::destroy_qp(queue.qp), 0);
    EXPECT_EQ(soft::destroy_cq(queue.cq), 0);
    EXPECT_EQ(soft::dereg_mr(mr), 0);
}

TEST(Import, LeavesARegionToTheLastContextWhenNoHandleIsLeft) {
    Endpoint left;
    Endpoint right;
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(right.connect(left.qp->qp_num), 0);
    ibv_context* const other = soft::open_device(soft::device_list(nullptr)[0]);
    ASSERT_NE(other, nullptr);
    ibv_pd* const pd = soft::alloc_pd(other);
    ibv_mr* const mr =
        soft::reg_mr(pd, right.memory, 64, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    ASSERT_NE(mr, nullptr);
    const std::uint32_t handle = mr->handle;
    const std::uint32_t key = mr->rkey;
    soft::unimport_mr(mr);
    ibv_mr* const again = soft::import_mr(pd, handle);
    ASSERT_NE(again, nullptr) << "it is there, and can be had again";
    EXPECT_EQ(again->rkey, key);
    soft::unimport_mr(again);
    EXPECT_EQ(soft::dealloc_pd(pd), EBUSY);
    soft::unimport_pd(pd);
    EXPECT_EQ(soft::close_device(other), 0);
    // Its key is given again, in its turn: nothing holds it.
    ASSERT_EQ(left.write(1, 0, 8, 0, key), 0);
    const auto wc = left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_REM_ACCESS_ERR);
}

TEST(Import, OfDeviceMemoryIsTheSameMemory) {
    Endpoint end;
    ibv_context* const imported = soft::import_device(duplicate(end.context));
    ASSERT_NE(imported, nullptr);
    ibv_alloc_dm_attr attributes{};
    attributes.length = 100;
    ibv_dm* const memory = ibv_alloc_dm(end.context, &attributes);
    ASSERT_NE(memory, nullptr);
    ibv_dm* const twin = soft::import_dm(imported, memory->handle);
    ASSERT_NE(twin, nullptr);
    EXPECT_EQ(twin->handle, memory->handle);
    EXPECT_EQ(twin->context, imported);
    std::array<char, 8> bytes{"through"};
    ASSERT_EQ(ibv_memcpy_to_dm(twin, 8, bytes.data(), bytes.size()), 0);
    std::array<char, 8> seen{};
    ASSERT_EQ(ibv_memcpy_from_dm(seen.data(), memory, 8, seen.size()), 0);
    EXPECT_EQ(seen, bytes);
    EXPECT_EQ(ibv_memcpy_to_dm(twin, 96, bytes.data(), bytes.size()), EINVAL);
    ibv_pd* const pd = soft::import_pd(imported, end.pd->handle);
    ibv_mr* const mr = ibv_reg_dm_mr(pd, twin, 0, 100, IBV_ACCESS_ZERO_BASED);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(ibv_free_dm(memory), EBUSY) << "the other handle's region is of it, too";
    EXPECT_EQ(soft::dereg_mr(mr), 0);
    EXPECT_EQ(ibv_free_dm(memory), 0);
    EXPECT_EQ(ibv_free_dm(twin), ENOENT);
    errno = 0;
    EXPECT_EQ(ibv_reg_dm_mr(pd, twin, 0, 100, IBV_ACCESS_ZERO_BASED), nullptr);
    EXPECT_EQ(errno, EINVAL);
    soft::unimport_dm(twin);
    soft::unimport_pd(pd);
    EXPECT_EQ(soft::close_device(imported), 0);
}

TEST(Import, OfARegionTakesWindowsThatKeepIt) {
    EndpointOptions options;
    options.access |= IBV_ACCESS_MW_BIND;
    Endpoint left{options};
    Endpoint right{options};
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(right.connect(left.qp->qp_num), 0);
    ibv_mr* const twin = soft::import_mr(right.pd, right.mr->handle);
    ASSERT_NE(twin, nullptr);
    ibv_mw* const window = ibv_alloc_mw(right.pd, IBV_MW_TYPE_1);
    ASSERT_NE(window, nullptr);
    ibv_mw_bind binding{};
    binding.send_flags = IBV_SEND_SIGNALED;
    binding.bind_info = {twin, right.address(), 64, IBV_ACCESS_REMOTE_WRITE};
    ASSERT_EQ(ibv_bind_mw(right.qp, window, &binding), 0);
    auto wc = right.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    soft::unimport_mr(twin);
    EXPECT_EQ(soft::dereg_mr(right.mr), EBUSY) << "the window is on the region, not on a handle";
    ASSERT_EQ(left.write(1, 0, 8, right.address(), window->rkey), 0);
    wc = left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

}  // namespace
}  // namespace millrace::test
