// Requesters and responders that each have a processor, of which a machine may have too few: what
// their loops would do, event by event, by what each step of them was measured to take. Work 004
// had 90 requesters and up to 18 responders on 6 hosts (section 7).
//
//     requester    makes a request (ask) ─ way ─►  responder   looks at its mailboxes in turn
//        ▲                                                     (look), serves what it finds (serve)
//        └────────────── way ◄─ link, one answer at a time ◄─────┘
//
// Called by the study of work 004.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::bench {

/// Nanoseconds.
struct SimulatedCosts {
    double ask = 0;    ///< of a requester: it takes an answer and makes the next request
    double serve = 0;  ///< of a responder: a request that it has found
    /// ... and a mailbox that it finds empty; of requests by SEND, a look at the queue of all.
    double look = 0;
    double way = 0;  ///< until one side sees what the other has done
};

struct SimulatedCase {
    SimulatedCosts costs{};
    std::size_t requesters = 1;
    std::size_t responders = 1;
    /// Processors of all requesters together; 0: each has one.
    std::size_t requester_cores = 0;
    /// Requests come to a shared queue of each responder, and not to mailboxes.
    bool by_send = false;
    std::size_t response_bytes = 64;
    /// Links that responders share evenly, each of so many bits a second; 0: none limits them.
    std::size_t links = 1;
    double link_bits_per_second = 0;
    std::size_t responses = 20'000;  ///< after a tenth of that to warm up
};

struct Simulated {
    double per_second = 0;      ///< responses
    double empty_percent = 0;   ///< of the mailboxes that were looked at
    double responder_busy = 0;  ///< part of the time that responders serve
};

/// Each request goes to a responder by chance, always the same chances. Throws Error
/// (invalid_argument): a case without requester or responder, or costs that take no time.
[[nodiscard]] Simulated simulate(const SimulatedCase& chosen);

}  // namespace millrace::bench
