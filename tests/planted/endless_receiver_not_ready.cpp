// The receiver posts one receive fewer than messages come. With receiver-not-ready retried without
// end the sender waits for ever, and nobody is told; with a bound the device names the cause.
#include "program.hpp"

namespace millrace::planted {

int send_three(const Options& options, int receives) {
    const Device device;
    Loopback pair{device, options};
    for (int i = 0; i < receives; ++i) {
        if (pair.b.receive(1, {pair.b_memory.slice(0, 64)}) != 0) return 2;
    }
    for (int i = 0; i < 3; ++i) {
        if (pair.a.send(1, {pair.a_memory.slice(0, 64)}) != 0) return 2;
    }
    for (int i = 0; i < 3; ++i) {
        if (const auto what = trouble(pair.a.sends)) {
            return went_wrong(*what + " after " + std::to_string(i) + " messages");
        }
    }
    return went_well();
}

MILLRACE_CHILD(endless_receiver_not_ready) {
    const bool wrong = makes_mistake(arguments);
    Options options;
    options.rnr_retries = 7;
    options.min_rnr_timer = 1;
    return send_three(options, wrong ? 2 : 3);
}

/// The same mistake where retries are bounded: an error in place of silence.
MILLRACE_CHILD(bounded_receiver_not_ready) {
    const bool wrong = makes_mistake(arguments);
    Options options;
    options.rnr_retries = 3;
    options.min_rnr_timer = 8;
    return send_three(options, wrong ? 2 : 3);
}

}  // namespace millrace::planted
