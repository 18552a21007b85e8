// One shared receive queue and one completion queue for all clients of a server: whose requests
// have come is known by their completions, and nobody's memory is looked at. Used by a server with
// Receives::shared, and by the ends of its channels.
//
// It is one resource of all: a client that sends more than its credits takes receives of the
// others, whose requests then wait at their queue pairs (receiver not ready), and every client's
// bytes land in memory beside another's. So it is for clients that the program trusts.
//
// A poll gives each completion to the end that it is for, which takes note, and remembers the
// end's place; the server goes through those places behind it.
//
// Source: work 004, section 4 (shared receive queue of the responder).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "channel/incoming.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/verbs/completion_queue.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/shared_receive_queue.hpp"

namespace millrace::message {

/// One thread. Must outlive all links whose queue pairs take their receives from it.
class SharedReceives {
  public:
    /// Throws Error (resource_exhausted).
    SharedReceives(connect::Endpoint& endpoint, std::uint32_t slots, std::size_t slot_bytes);
    SharedReceives(const SharedReceives&) = delete;
    SharedReceives& operator=(const SharedReceives&) = delete;

    [[nodiscard]] verbs::CompletionQueue& completions() noexcept { return completions_; }
    [[nodiscard]] verbs::SharedReceiveQueue& queue() noexcept { return queue_; }
    [[nodiscard]] verbs::CompletionChannel& channel() noexcept { return channel_; }
    [[nodiscard]] const Slots& slots() const noexcept { return slots_; }

    /// From now on its completions are told to `core`.
    void add(Channel::Core& core);
    void remove(Channel::Core& core) noexcept;

    [[nodiscard]] bool post(std::uint32_t slot) noexcept { return slots_.post(queue_, slot) == 0; }
    /// Tells the ends what has come.
    void poll() noexcept;
    /// Places to which something has come since the last call. Valid until the next one.
    [[nodiscard]] const std::vector<std::uint32_t>& told() noexcept;

  private:
    verbs::CompletionChannel channel_;
    verbs::CompletionQueue completions_;
    verbs::RegisteredBuffer memory_;
    verbs::SharedReceiveQueue queue_;
    Slots slots_;
    std::unordered_map<std::uint32_t, Channel::Core*> ends_;  ///< by number of queue pair
    std::vector<Channel::Core*> told_;
    std::vector<std::uint32_t> given_;
};

}  // namespace millrace::message
