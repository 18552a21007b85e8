// A message is written over an unreliable connection, and its first word says that it is there. The
// sender knows that messages can be lost, and writes again what has not come; but of a lost WRITE
// the first packets may have landed. A checksum tells.
#include "program.hpp"

#include <cstdint>

namespace millrace::planted {

MILLRACE_CHILD(trusted_write) {
    const bool wrong = makes_mistake(arguments);
    constexpr std::size_t length = 4 * 4096;
    Options options;
    options.type = IBV_QPT_UC;
    options.access = IBV_ACCESS_REMOTE_WRITE;
    const Device device;
    std::optional<Loopback> ends;
    try {
        ends.emplace(device, options);
    } catch (const std::system_error& error) {
        if (!conformance::says_unsupported(error.code().value())) throw;
        say("unsupported");
        return 3;
    }
    Loopback& pair = *ends;
    const auto checksum = [](const Buffer& buffer) {
        std::uint64_t sum = 0;
        for (std::size_t at = 16; at < length; at += 8) sum = sum * 31 + buffer.word(at);
        return sum;
    };
    for (unsigned message = 1; message <= 40; ++message) {
        pair.a_memory.fill(message);
        pair.a_memory.set_word(message, 0);
        pair.a_memory.set_word(checksum(pair.a_memory), 8);
        const auto came = [&] {
            return pair.b_memory.word(0) == message &&
                   (wrong || pair.b_memory.word(8) == checksum(pair.b_memory));
        };
        for (int attempt = 0; !came(); ++attempt) {
            if (attempt == 100) return went_wrong("stuck");
            if (pair.a.write(message, {pair.a_memory.slice(0, length)}, at(pair.b_memory)) != 0) {
                return 2;
            }
            if (const auto what = trouble(pair.a.sends)) return went_wrong(*what);
            base::NapParker naps;
            static_cast<void>(base::wait_until(
                came, base::Deadline::after(std::chrono::milliseconds{2}), {}, naps));
        }
        if (!conformance::same(pair.a_memory, 0, pair.b_memory, 0, length)) {
            return went_wrong("old bytes behind a new head");
        }
    }
    return went_well();
}

}  // namespace millrace::planted
