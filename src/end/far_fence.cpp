// Far fences by membarrier(2), see the header.
#include "millrace/end/far_fence.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "millrace/base/detail/system_calls.hpp"

namespace millrace::end {
namespace {

long membarrier(int command) noexcept { return ::syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

bool register_for_far_fences() noexcept {
    static const bool registered = [] {
        constexpr long wanted =
            MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
        const long commands = membarrier(MEMBARRIER_CMD_QUERY);
        return commands > 0 && (commands & wanted) == wanted &&
               membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
    }();
    return registered;
}

bool can_make_far_fences(connect::Link& link) noexcept {
    return link.queue_pair().shares_memory() && register_for_far_fences();
}

void far_fence() noexcept {
    membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    base::count_system_call();
}

}  // namespace millrace::end
