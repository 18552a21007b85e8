// Thread domains and parent domains: they protect as their protection domain does.
#include "soft/endpoint.hpp"

namespace millrace::test {
namespace {

TEST(Domains, AreInUseUntilWhatWasMadeFromThemIsGone) {
    Endpoint end;
    ibv_td_init_attr nothing{};
    ibv_td* const thread = ibv_alloc_td(end.context, &nothing);
    ASSERT_NE(thread, nullptr);
    ibv_pd* const pd = soft::alloc_pd(end.context);
    ibv_parent_domain_init_attr attributes{};
    attributes.pd = pd;
    attributes.td = thread;
    ibv_pd* const parent = ibv_alloc_parent_domain(end.context, &attributes);
    ASSERT_NE(parent, nullptr);
    EXPECT_EQ(parent->context, end.context);
    EXPECT_EQ(ibv_dealloc_td(thread), EBUSY);
    EXPECT_EQ(soft::dealloc_pd(pd), EBUSY);
    ibv_mr* const mr = soft::reg_mr(parent, end.memory, 64, 0, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(soft::dealloc_pd(parent), EBUSY);
    EXPECT_EQ(soft::dereg_mr(mr), 0);
    EXPECT_EQ(soft::dealloc_pd(parent), 0);
    EXPECT_EQ(soft::dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_dealloc_td(thread), 0);
}

TEST(Domains, OfAParentUseTheKeysOfItsProtectionDomain) {
    Endpoint left;
    Endpoint right;
    ibv_parent_domain_init_attr attributes{};
    attributes.pd = left.pd;
    ibv_pd* const parent = ibv_alloc_parent_domain(left.context, &attributes);
    ASSERT_NE(parent, nullptr);
    ASSERT_EQ(soft::destroy_qp(left.qp), 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = left.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {4, 4, 1, 1, 0};
    left.qp = soft::create_qp(parent, &init);
    ASSERT_NE(left.qp, nullptr);
    ASSERT_EQ(left.connect(right.qp->qp_num), 0);
    ASSERT_EQ(right.connect(left.qp->qp_num), 0);
    // The buffer was registered in the protection domain itself.
    ASSERT_EQ(left.write(1, 0, 8, right.address(), right.mr->rkey), 0);
    const auto wc = left.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    ASSERT_EQ(soft::destroy_qp(left.qp), 0);
    left.qp = nullptr;
    EXPECT_EQ(soft::dealloc_pd(parent), 0);
}

TEST(Domains, RefuseWhatTheyCannotKeep) {
    Endpoint end;
    Endpoint other;
    ibv_td_init_attr unknown{};
    unknown.comp_mask = 1;
    EXPECT_EQ(ibv_alloc_td(end.context, &unknown), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);

    ibv_parent_domain_init_attr attributes{};
    attributes.pd = end.pd;
    attributes.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    EXPECT_EQ(ibv_alloc_parent_domain(end.context, &attributes), nullptr) << "own allocators";
    EXPECT_EQ(errno, EOPNOTSUPP);
    attributes.comp_mask = 0;
    attributes.pd = nullptr;
    EXPECT_EQ(ibv_alloc_parent_domain(end.context, &attributes), nullptr);
    EXPECT_EQ(errno, EINVAL);
    attributes.pd = other.pd;
    EXPECT_EQ(ibv_alloc_parent_domain(end.context, &attributes), nullptr) << "another context's";
    EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace millrace::test
