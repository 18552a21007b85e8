// How an opened soft device behaves: `fast`, `shaped` like a network link, `faulty` like a bad one,
// or `strict`. Chosen by MILLRACE_SOFT_MODE when the device is opened. Used by contexts and by
// queue pairs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::soft {

/// The longest latency, jitter or delay that a mode may have.
inline constexpr std::int64_t longest_ns = 10'000'000'000;

/// The link that shaped queue pairs send over. docs/modes.md.
struct CableSettings {
    std::uint64_t bits_per_second = 10'000'000'000;  ///< 0: as fast as it goes
    std::int64_t latency_ns = 1'000;                 ///< one way
    std::int64_t jitter_ns = 0;                      ///< at most so much more, per request
    std::uint32_t packets_in_flight = 0;  ///< of a port, unacknowledged; never 0 once parsed
    std::uint32_t mtu = 4096;             ///< payload bytes of a packet
    std::uint32_t header = 0;             ///< bytes that each packet takes besides
    std::uint64_t seed = 1;               ///< of the jitter

    friend bool operator==(const CableSettings&, const CableSettings&) = default;
};

/// How mode `strict` decides what the rules leave open. docs/modes.md.
struct StrictSettings {
    std::uint64_t seed = 1;
    std::int64_t delay_ns = 200'000;  ///< the longest that one thing is put off
    bool in_order = false;            ///< the bytes of a request land in increasing order

    friend bool operator==(const StrictSettings&, const StrictSettings&) = default;
};

/// What goes wrong in mode `faulty`, on a link as above whose seed decides it. Shares are in parts
/// per million. docs/modes.md.
struct FaultSettings {
    std::uint32_t loss = 10'000;       ///< of messages
    std::uint32_t not_ready = 0;       ///< of requests that need a receive: there was none yet
    std::uint32_t duplicate = 10'000;  ///< of datagrams
    std::uint32_t reorder = 10'000;    ///< of datagrams
    std::uint32_t exhaust = 0;         ///< of reliable requests: all retries fail
    std::int64_t delay_ns = 100'000;   ///< at most so much later comes what is late
    std::uint64_t die = 0;             ///< the process kills itself at this operation; 0: never

    friend bool operator==(const FaultSettings&, const FaultSettings&) = default;
};

enum class ModeKind : std::uint32_t { fast = 0, shaped = 1, strict = 2, faulty = 3 };

struct Mode {
    ModeKind kind = ModeKind::fast;
    CableSettings cable;
    StrictSettings strict;
    FaultSettings faults;

    /// Requests are in flight: they are scheduled when they are posted, and executed later.
    [[nodiscard]] bool scheduled() const noexcept { return kind != ModeKind::fast; }

    friend bool operator==(const Mode&, const Mode&) = default;
};

/// "fast", "shaped", "shaped:40g,latency=24ms,jitter=10us,inflight=64,mtu=1024,header=30,seed=7",
/// "strict", "strict:seed=7,delay=200us,order=any".
/// "faulty:seed=3,loss=1%,rnr=1%,duplicate=0.5%,reorder=2%,delay=1ms,exhaust=0.01%,die=1000" and
/// what shaped has.
/// Throws base::Error (invalid_argument) that says what is allowed.
[[nodiscard]] Mode parse_mode(std::string_view text);

/// What MILLRACE_SOFT_MODE says; fast if it says nothing. Throws as parse_mode.
[[nodiscard]] Mode mode_of_environment();

/// "fast", "strict, seed 1", or "shaped, 10 Gb/s, 1 us one way": complete for those that differ
/// from the default.
[[nodiscard]] std::string describe(const Mode& mode);

/// The same without what each end has to itself: seeds, and the faults that it makes.
[[nodiscard]] std::string describe_agreement(const Mode& mode);

}  // namespace millrace::soft
