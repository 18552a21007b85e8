// How a flow queue is made: the options of both its ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/send_window.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::flow {

struct Options {
    /// Items that each of the two rings (the producer's and the consumer's) holds: 1 or more, not
    /// only powers of two. For Bytes: bytes of ring, frame headers included; the longest frame is
    /// about half of it. Not given: what the other end asks for, else 256 KiB. If both ends ask,
    /// the smaller number holds. 0 is refused.
    std::optional<std::uint64_t> capacity{};
    /// How waiting operations escalate from spinning to sleeping.
    base::WaitPolicy wait{};
    /// The device; null: connect::Endpoint::shared(), which follows MILLRACE_DEVICE.
    std::shared_ptr<connect::Endpoint> endpoint{};
    /// Who is let in: a secret that both ends must know, a budget for a listener's clients.
    connect::Admission admission{};
    /// For the statistics page: "flow producer <name>".
    std::string name{};
    /// Design 1, producer: see ring::RingOptions.
    double refresh_above = 0.5;
    /// Consumer: see ring::RingOptions.
    std::uint32_t credit_parts = 8;
    /// Consumer of push2 data or of immediates: see ring::RingOptions. More than 64 must be asked
    /// of both ends, because whoever accepts makes its queue pair before they agree.
    std::uint32_t receive_pool = ring::RingOptions::default_pool;
    /// Designs with batching: items that make a batch, see ring::RingOptions. The number behind
    /// "fixed" or "dynamic" in the name of a design.
    std::optional<std::uint32_t> batch{};
    /// Producer: how many items of try_enqueue_gather one WRITE shall be able to gather, at most
    /// 16. The queue pair is asked for two slices each, and refuses what the device cannot do.
    std::uint32_t gather = 1;
    /// Producer: see ring::RingOptions.
    ring::Completions completions = ring::Completions::polled;
    /// Designs with transfer push: the counter has a queue pair of its own. What either end asks
    /// for holds for both; see ring::RingOptions.
    bool own_transfer_queue = false;
    /// What carries items of push1 data: stores, where the peer's memory is addressable, or
    /// requests. See ring/carrier.hpp and docs/flow.md; explain() says which and why.
    ring::Carrier carrier = ring::Carrier::automatic;
    /// Told to the other end, to which it means what the two have agreed on: see FanIn and
    /// PriorityProducer.
    std::uint32_t label = 0;
    /// The other end's label must be below, or it is refused. 0: it may be any.
    std::uint32_t peer_labels = 0;
    /// Producer: for tests of wrapping counters, see ring::RingOptions.
    std::uint64_t initial_position = 0;
};

}  // namespace millrace::flow
