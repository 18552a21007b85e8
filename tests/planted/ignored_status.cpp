// The sender counts completions as messages that were delivered, and does not look at their status.
// A reliable connection that gives up completes, too, and so does all that is posted to it
// afterwards. Without the mistake the two ends connect anew and the message is written again.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(ignored_status) {
    const bool wrong = makes_mistake(arguments);
    const Device device;
    Loopback pair{device, conformance::impatient()};
    for (unsigned message = 1; message <= 30;) {
        pair.a_memory.set_word(message);
        if (pair.a.write(message, {pair.a_memory.slice(0, 8)}, at(pair.b_memory)) != 0) return 2;
        const auto completion = wait_for(pair.a.sends);
        if (!completion) return went_wrong("stuck");
        if (wrong || completion->status == IBV_WC_SUCCESS) {
            if (pair.b_memory.word() != message) {
                return went_wrong("counted as done, and not there");
            }
            ++message;
            continue;
        }
        if (pair.a.to(IBV_QPS_RESET) != 0 || pair.b.to(IBV_QPS_RESET) != 0) return 2;
        pair.a.connect(pair.b.name());
        pair.b.connect(pair.a.name());
    }
    return went_well();
}

}  // namespace millrace::planted
