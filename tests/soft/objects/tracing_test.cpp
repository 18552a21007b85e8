// The lines of MILLRACE_TRACE: they say what the device was asked for, not only what a request says
// of itself.
#include <fstream>
#include <sstream>
#include <string>

#include <gmock/gmock.h>

#include "soft/endpoint.hpp"
#include "support/setting_scope.hpp"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// What is written while `work` is done with an endpoint of these options.
template <class Work>
std::string trace_of(const EndpointOptions& options, Work&& work) {
    const int file = memfd_create("trace", MFD_CLOEXEC);
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    {
        const SettingScope traced{"MILLRACE_TRACE", path};
        Endpoint end{options};
        work(end);
    }
    std::ostringstream text;
    text << std::ifstream{path}.rdbuf();
    close(file);
    return text.str();
}

TEST(Tracing, CallsRequestsSignaledWhereTheirQueuePairSignalsAll) {
    for (const bool all : {false, true}) {
        EndpointOptions options;
        options.signal_all = all;
        const std::string text = trace_of(options, [](Endpoint& end) {
            ASSERT_EQ(end.connect(end.qp->qp_num), 0);
            for (const unsigned flags : {0U, unsigned{IBV_SEND_SIGNALED}}) {
                ASSERT_EQ(end.post(IBV_WR_RDMA_WRITE, flags, {end.sge(0, 8)}, flags,
                                   end.address(64), end.mr->rkey),
                          0);
            }
            ASSERT_TRUE(end.complete());
        });
        const std::string unflagged = all ? "true" : "false";
        EXPECT_THAT(text, AllOf(HasSubstr(R"("wr_id":0,"opcode":"WRITE","bytes":8,"pieces":1,)"
                                          R"("signaled":)" +
                                          unflagged),
                                HasSubstr(R"("wr_id":2,"opcode":"WRITE","bytes":8,"pieces":1,)"
                                          R"("signaled":true)")));
    }
}

}  // namespace
}  // namespace millrace::test
