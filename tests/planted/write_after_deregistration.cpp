// The receiving side gives its buffer back while the peer still writes into it.
#include "program.hpp"

namespace millrace::planted {

MILLRACE_CHILD(write_after_deregistration) {
    const bool wrong = makes_mistake(arguments);
    const Device device;
    Loopback pair{device};
    Buffer inbox{pair.b_domain.get(), 4096};
    const conformance::Target target = at(inbox);
    const int writes = 6;
    for (int i = 0; i < writes; ++i) {
        const bool done_with_it = i == (wrong ? 3 : writes);
        if (done_with_it && inbox.deregister() != 0) return 2;
        if (pair.a.write(1, {pair.a_memory.slice(0, 64)}, target) != 0) return 2;
        if (const auto what = trouble(pair.a.sends)) {
            return went_wrong(*what + " after " + std::to_string(i) + " writes");
        }
    }
    return went_well();
}

}  // namespace millrace::planted
