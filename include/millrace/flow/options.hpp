// How a flow queue is made: the options of both its ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/filter.hpp"
#include "millrace/ring/options.hpp"

namespace millrace::flow {

struct Options {
    /// What is asked for of the ring beneath: capacity, batches, carrier and so on.
    ring::RingOptions ring{};
    /// How waiting operations escalate from spinning to sleeping.
    base::WaitPolicy wait{};
    /// The device; null: connect::Endpoint::shared(), which follows MILLRACE_DEVICE.
    std::shared_ptr<connect::Endpoint> endpoint{};
    /// Which peers are let in: a secret that both ends must know, a budget for a listener's
    /// clients.
    connect::Admission admission{};
    /// For the statistics page: "flow producer <name>".
    std::string name{};
    /// Producer: how many items of try_enqueue_gather one WRITE shall be able to gather, at most
    /// 16. The queue pair is asked for two slices each, and refuses what the device cannot do.
    std::uint32_t gather = 1;
    /// Consumer: what the producer makes of each item before it is laid (flow/filter.hpp).
    Filter filter{};
};

}  // namespace millrace::flow
