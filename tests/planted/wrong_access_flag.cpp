// A region is registered for local writing alone, and its key is given to a peer that writes.
#include "program.hpp"

namespace millrace::planted {

MILLRACE_CHILD(wrong_access_flag) {
    const bool wrong = makes_mistake(arguments);
    const unsigned access = wrong ? unsigned{IBV_ACCESS_LOCAL_WRITE}
                                  : unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    const Device device;
    Loopback pair{device};
    const Buffer inbox{pair.b_domain.get(), 4096, access};
    if (pair.a.write(1, {pair.a_memory.slice(0, 64)}, at(inbox)) != 0) return 2;
    if (const auto what = trouble(pair.a.sends)) return went_wrong(*what);
    return went_well();
}

}  // namespace millrace::planted
