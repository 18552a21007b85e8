// The two halves of a channel, for two threads: one sends, the other one receives.
//
//     auto [sender, receiver] = std::move(channel).split();
//     std::thread other{[&, s = std::move(sender)]() mutable { (void)s.send(bytes, deadline); }};
//     (void)receiver.receive([&](std::span<const std::byte> message) { … }, deadline);
//
// Both directions of a channel have one queue pair and one word by which its end tells the other
// how far it is, so the halves take turns: a call holds a lock, and never while it waits, while a
// message is written in place, or while one is looked at. A program with one thread, or with an end
// for each direction, does without.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/detail/frame_reader.hpp"
#include "millrace/message/detail/in_place.hpp"

namespace millrace::message {

namespace detail {
struct SplitChannel;  ///< private to message/
}  // namespace detail

/// The half that sends. Move-only; one thread at a time. Answers and limits are those of Channel's
/// functions of the same name; `try_…` may wait while a call of the other half is under way. While
/// messages lie unreceived in a channel that is full, room is looked for by the clock, every 50 us
/// to 1 ms.
class ChannelSender {
  public:
    ChannelSender(ChannelSender&&) noexcept;
    ChannelSender& operator=(ChannelSender&&) noexcept;
    ~ChannelSender();

    [[nodiscard]] std::size_t max_piece() const noexcept;
    base::Status try_send(std::span<const std::byte> message);
    base::Status send(std::span<const std::byte> message, const base::Deadline& deadline);
    /// `fill` must not use this half.
    template <class Fill>
    base::Status try_send(std::size_t size, Fill&& fill) {
        return detail::send_in_place([&](std::span<std::byte>& room) { return claim(size, room); },
                                     fill, [this](std::size_t used) { return commit(used); });
    }
    template <class Fill>
    base::Status send(std::size_t size, Fill&& fill, const base::Deadline& deadline) {
        return detail::send_in_place(
            [&](std::span<std::byte>& room) { return claim(size, room, deadline); }, fill,
            [this](std::size_t used) { return commit(used); });
    }
    base::Status finish(const base::Deadline& deadline);

    [[nodiscard]] ChannelStats stats() const;
    [[nodiscard]] const std::string& peer() const noexcept;
    [[nodiscard]] std::string failure() const;

  private:
    friend class Channel;
    friend Channel join(ChannelSender sender, class ChannelReceiver receiver);
    explicit ChannelSender(std::shared_ptr<detail::SplitChannel> both) noexcept;
    base::Status claim(std::size_t size, std::span<std::byte>& room);
    base::Status claim(std::size_t size, std::span<std::byte>& room,
                       const base::Deadline& deadline);
    base::Status commit(std::size_t size);

    std::shared_ptr<detail::SplitChannel> both_;
};

/// The half that receives, likewise.
class ChannelReceiver {
  public:
    ChannelReceiver(ChannelReceiver&&) noexcept;
    ChannelReceiver& operator=(ChannelReceiver&&) noexcept;
    ~ChannelReceiver();

    /// Hands the next message, whole, to `take(std::span<const std::byte>)`, which must not use
    /// this half.
    template <class Take>
        requires std::is_invocable_v<Take&, std::span<const std::byte>>
    base::Status try_receive(Take&& take) {
        return deliver([this](Piece& message) { return look(message); }, take);
    }
    template <class Take>
        requires std::is_invocable_v<Take&, std::span<const std::byte>>
    base::Status receive(Take&& take, const base::Deadline& deadline) {
        return deliver([&](Piece& message) { return look(message, deadline); }, take);
    }
    /// Replaces `into` by the next message.
    base::Status receive(std::vector<std::byte>& into, const base::Deadline& deadline);

    [[nodiscard]] ChannelStats stats() const;
    [[nodiscard]] const std::string& peer() const noexcept;
    [[nodiscard]] std::string failure() const;

  private:
    friend class Channel;
    friend Channel join(ChannelSender sender, ChannelReceiver receiver);
    explicit ChannelReceiver(std::shared_ptr<detail::SplitChannel> both) noexcept;
    base::Status look(Piece& message);
    base::Status look(Piece& message, const base::Deadline& deadline);
    void release();
    template <class Look, class Take>
    base::Status deliver(Look look_message, Take& take) {
        return detail::receive_in_place(
            look_message, [&take](const Piece& message) { take(message.payload); },
            [this] { release(); });
    }

    std::shared_ptr<detail::SplitChannel> both_;
};

/// What Channel::split gives. The channel lives until both are gone: without join() and close()
/// before it, the peer reports this side as lost.
struct ChannelHalves {
    ChannelSender sender;
    ChannelReceiver receiver;
};

/// The channel again, to be closed, say. Throws Error (invalid_argument): they are not the halves
/// of one channel.
[[nodiscard]] Channel join(ChannelSender sender, ChannelReceiver receiver);

}  // namespace millrace::message
