// One point of the study of work 004: requesters that ask responders for items, one request of each
// at a time. The requesters are one process on a core of its own, the responders another one.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"
#include "response_memory.hpp"

namespace millrace::bench {

struct RpcCase {
    std::string device = "soft0";
    std::string mode = "fast";                              ///< as MILLRACE_SOFT_MODE has it
    message::Transfer requests = message::Transfer::write;  ///< `send`: to a shared receive queue
    message::Transfer answers = message::Transfer::write;
    std::size_t response_bytes = 64;  ///< at least 16; a request has 64
    std::size_t requesters = 1;
    std::size_t window = 1;      ///< requests that each has on its way; of threads
    std::size_t responders = 1;  ///< of which each request goes to one by chance
    /// Each requester is a thread; else one thread drives all of them. Threads of a side run where
    /// they like of its processors (cores_of_side).
    bool threads = false;
    /// Each dispatcher is a thread of its own also where one thread drives all requesters; else
    /// that one takes their turns.
    bool dispatcher_threads = false;
    /// Each responder is a thread; else one thread serves all of them.
    bool responder_threads = false;
    /// Requesters that share one connection to each responder by a dispatcher; 0: each has its own.
    std::size_t per_dispatcher = 0;
    /// Percent of the requesters that do not ask, and take their turn later.
    std::size_t idle_percent = 0;
    message::Polling polling = message::Polling::flag;
    message::PostingHabits posting{};
    /// By requests, also where stores would do.
    bool posts = false;
    /// What each responder takes its responses from, and on which pages.
    std::size_t memory_bytes = std::size_t{64} << 20;
    Pages pages = Pages::as_they_come;
    /// At least; longer until there are enough responses: 3 s, or 40 s until there are two windows
    /// of them.
    std::chrono::nanoseconds duration = std::chrono::milliseconds{100};
};

/// Rates and cycles are medians of windows of so many responses, not of so much time: what the
/// system does with the processors meanwhile lengthens few of them.
struct RpcResult {
    double per_second = 0;  ///< responses
    double megabytes_per_second = 0;
    double median_us = 0;
    double p99_us = 0;
    /// Cycles of the processor's clock for what each side did, without rounds in which it found
    /// nothing to do. The requester's where one thread drives all.
    double requester_cycles_per_byte = 0;
    double responder_cycles_per_byte = 0;
    double responder_cycles_per_message = 0;
    /// The same with those rounds: all cycles of a thread, which always polls.
    double requester_all_cycles_per_byte = 0;
    double responder_all_cycles_per_byte = 0;
    double responder_all_cycles_per_message = 0;
    /// Of a look at all mailboxes, or at the shared queue, that finds nothing; of one responder.
    double responder_cycles_per_vain_look = 0;
    /// Of the mailboxes that a responder looked at in rounds that found some request.
    double empty_percent = 0;
};

/// Throws Error.
[[nodiscard]] RpcResult measure_rpc(const RpcCase& chosen);

}  // namespace millrace::bench
