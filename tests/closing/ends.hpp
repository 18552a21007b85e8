// The ends that are held to the close contract (docs/closing.md): two of each abstraction, in one
// process, of which one sends and closes.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/ring/carrier.hpp"

namespace millrace::closing {

using base::Deadline;
using base::Status;
using ring::Carrier;
using Number = std::uint64_t;

/// Generous: it only ends tests that have failed.
inline Deadline soon() { return Deadline::after(std::chrono::seconds{40}); }

inline std::string fresh_address() {
    static std::atomic<int> count{0};
    return "unix:@millrace-closing-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

/// Two ends in this process; the items are numbers. Nothing but close() waits.
struct Pair {
    std::function<Status(std::uint64_t)> send;
    std::function<Status(std::uint64_t&)> receive;
    std::function<Status(const Deadline&)> close;
    std::function<void()> drop;
    std::function<void()> close_other;
    std::function<void()> drop_other;
    /// The other way, where there is one.
    std::function<Status(std::uint64_t)> answer{};
    std::function<Status(std::uint64_t&)> hear{};
    /// What is sent lies in the other end's memory at once: there is nothing to deliver.
    bool delivers_at_once = false;
    /// The other end reads the last one only.
    bool keeps_last = false;
    /// Nothing is delivered before the other end fetches it.
    bool is_fetched = false;
    /// Where the other end has left before it had everything, or has died.
    Status if_left = Status::closed;
    Status if_lost = Status::peer_lost;
    /// What the other end reads once this one is destroyed.
    Status if_dropped = Status::peer_lost;
};

struct Made {
    const char* name;
    Pair (*make)(Carrier);
    bool has_carriers = true;  ///< else it is the same by any
};

/// Both ends, made at the same time as each waits for the other.
template <class Out, class In>
struct Ends {
    template <class MakeOut, class MakeIn>
    Ends(MakeOut&& make_out, MakeIn&& make_in) {
        auto making = std::async(std::launch::async, make_out);
        in.emplace(make_in());
        out.emplace(making.get());
    }
    std::optional<Out> out;
    std::optional<In> in;
};

std::vector<Made> flows();
std::vector<Made> two_ways();
std::vector<Made> sessions();

}  // namespace millrace::closing
