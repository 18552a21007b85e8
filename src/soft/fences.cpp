// The rare side of fences.hpp: membarrier(2).
#include "fences.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "millrace/base/system_calls.hpp"

namespace millrace::soft {
namespace {

long membarrier(int command) noexcept { return ::syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

void heavy_fence() noexcept {
    full_fence();
    membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    base::count_system_call();
    full_fence();
}

bool register_for_membarrier() noexcept {
    static const bool registered = [] {
        const long commands = membarrier(MEMBARRIER_CMD_QUERY);
        constexpr long wanted =
            MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
        return commands > 0 && (commands & wanted) == wanted &&
               membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
    }();
    return registered;
}

}  // namespace millrace::soft
