// Messages echoed by raw verbs between two processes, one at a time: what work 001, chapter 3,
// measures. Called by the study of `millrace bench verbs`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace::bench {

enum class Transport : std::uint8_t { reliable, unreliable, datagram };

/// How one message gets to the other side, and how that learns of it.
enum class Way : std::uint8_t {
    send,             ///< SEND; the completion of a receive
    immediate_alone,  ///< SEND of no bytes with immediate data, which is the message
    write,            ///< WRITE; a look at the memory
    write_immediate,  ///< WRITE with immediate data; the completion of a receive
    /// WRITE into memory of the other side, and a READ that brings it back: no echo, as the other
    /// side takes no part. Whether it is back is seen by a look at the memory,
    read_memory,
    read_completion,  ///< or by the READ's completion
    // To a place that the sender chooses, and tells (section 3.3):
    place_immediate,  ///< as immediate data of the WRITE
    place_behind,     ///< by a WRITE after that of the message
    place_before,     ///< by a WRITE before it
    chained_behind,   ///< place_behind, both WRITEs by one call
    chained_before,
};

struct EchoCase {
    Way way = Way::write;
    Transport transport = Transport::reliable;
    std::size_t bytes = 64;         ///< 4 to 65536; datagrams: 1024 at most
    bool inlined = true;            ///< where the message is short enough for it: 256 B
    bool events = false;            ///< sleeps for completions, instead of polling for them
    std::string mode = "fast";      ///< as MILLRACE_SOFT_MODE has it
    std::uint64_t echoes = 10'000;  ///< so many are timed; more warm up
};

/// Nanoseconds from a message's post to its echo's arrival: the median of 20 windows. Every message
/// is changed, and compared when it arrives. Throws Error.
[[nodiscard]] double measure_echo(const EchoCase& chosen);

}  // namespace millrace::bench
