// The sender fills its buffer with the next message as soon as ibv_post_send has returned. Until
// the completion the buffer belongs to the device, which may read it at any time.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(buffer_reuse) {
    const bool wrong = makes_mistake(arguments);
    constexpr std::size_t length = 1024;
    const Device device;
    Loopback pair{device};
    for (unsigned message = 1; message <= 10; ++message) {
        if (pair.b.receive(message, {pair.b_memory.slice(0, length)}) != 0) return 2;
        pair.a_memory.fill(message);
        if (pair.a.send(message, {pair.a_memory.slice(0, length)}) != 0) return 2;
        if (wrong) pair.a_memory.fill(message + 1);
        if (const auto what = trouble(pair.a.sends)) return went_wrong(*what);
        if (const auto what = trouble(pair.b.receives)) return went_wrong("receive: " + *what);
        for (std::size_t i = 0; i < length; ++i) {
            if (pair.b_memory.data()[i] != Buffer::pattern(i, message)) {
                return went_wrong("other bytes than sent");
            }
        }
    }
    return went_well();
}

}  // namespace millrace::planted
