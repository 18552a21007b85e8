// WRITEs of one thread, posted by plain verbs: what a thread domain brings, in which the program
// promises the device that no two threads use a queue pair at a time.
#pragma once

#include <cstddef>
#include <string>

namespace millrace::bench {

struct PostingCase {
    std::string device = "soft0";
    std::string mode = "fast";  ///< as MILLRACE_SOFT_MODE has it
    bool thread_domain = false;
    std::size_t at_a_time = 1;   ///< requests of one call of ibv_post_send, and of one completion
    std::size_t calls = 20'000;  ///< all in all, without those that warm up
};

/// Millions of WRITEs of 64 bytes a second. Throws Error: unsupported, the device offers no thread
/// domains.
[[nodiscard]] double measure_posting(const PostingCase& chosen);

}  // namespace millrace::bench
