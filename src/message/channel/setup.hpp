// Making ends of channels: what Listener and connect() do, for whoever builds something above a
// channel in this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "channel/channel_core.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::message {

/// What both ends of a link must say that they are.
struct Service {
    std::string name;
    std::uint32_t version = 1;
};

/// A Server, for its Client, unless they say to be of another kind; the version is the same then.
extern const Service server_service;

/// Throws Error (invalid_argument).
void check(const ChannelOptions& options);
/// The same of Tuning::slot_bytes.
void check_slots(const char* attempted, std::size_t slot_bytes);
[[nodiscard]] connect::LinkOptions link_options(const ChannelOptions& options,
                                                const Service& service);
/// Tells the peer of our memory, hears of its, and is ready to send and to receive. Does not wait
/// where the peer's word is here already. Throws Error as Link::exchange; protocol, refused.
[[nodiscard]] std::unique_ptr<Channel::Core> set_up(connect::Link link,
                                                    const ChannelOptions& options,
                                                    const base::Deadline& deadline,
                                                    const Ways& ways = {});

/// What an end that accepts leaves to its peers.
struct Allowed {
    bool receives_by_send = false;
    bool sends_by_send = false;
    /// As in Ways.
    std::size_t slot_bytes = Ways::default_slot_bytes;
    SharedReceives* shared = nullptr;
};
/// The same for a peer that was accepted and has said its word: it hears ours when there is place
/// for it, and goes by the ways that it asks for.
[[nodiscard]] std::unique_ptr<Channel::Core> set_up_accepted(connect::Link link,
                                                             const ChannelOptions& options,
                                                             const base::Deadline& deadline,
                                                             const Allowed& allowed = {});
/// Receives that a queue pair needs for messages by SEND, and for events.
[[nodiscard]] std::uint32_t receives_for(std::size_t ring_bytes, std::size_t slot_bytes) noexcept;

}  // namespace millrace::message
