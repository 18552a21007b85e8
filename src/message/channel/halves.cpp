// Halves of a channel: the try_ calls of the channel under a lock, and waits for its descriptor.
#include "millrace/message/halves.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "channel/channel_core.hpp"
#include "channel/pieces.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/turn.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/wait.hpp"

namespace millrace::message {

using base::Deadline;
using base::Status;

namespace detail {

struct SplitChannel {
    explicit SplitChannel(Channel whole)
        : channel{std::move(whole)},
          descriptor{channel.descriptor()},
          policy{channel.core_->options.wait} {}
    static Channel::Core& core_of(Channel& whole) noexcept { return *whole.core_; }

    /// `call(channel)`, while the other half makes none.
    template <class Call>
    auto alone(Call&& call) {
        (void)turn.take(Deadline::never(), base::WaitPolicy{});
        struct Behind {
            base::Turn& turn;
            ~Behind() { turn.give_back(); }
        };
        const Behind behind{turn};
        return call(channel);
    }
    /// The same by the half that sends, and waits while that answers `again`.
    template <class Call>
    Status sending(Status again, Call&& call) {
        return alone([&](Channel& whole) {
            const Status status = call(whole);
            // A claim stands: who looked for room then could pass over the end of the ring with it.
            sender_waits = whole.core_->wants_room = status == again;
            return status;
        });
    }
    /// The same by the half that receives, in whose calls the channel finds that there is room,
    /// says so once, and would then fall asleep: the one that waits for it may not have seen it.
    template <class Call>
    auto receiving(Call&& call) {
        return alone([&](Channel& whole) {
            const auto result = call(whole);
            if (sender_waits) whole.core_->wants_room = true;
            return result;
        });
    }

    [[nodiscard]] ChannelStats stats() {
        return alone([](Channel& whole) { return whole.stats(); });
    }

    Channel channel;
    const int descriptor;
    const base::WaitPolicy policy;
    base::Turn turn;
    bool sender_waits = false;  ///< guarded by turn
};

}  // namespace detail

namespace {

/// Sleeps until the channel's descriptor is readable, as it stays until it was looked at, and room
/// is there if that was missed. It may be so for the other half alone: whoever is woken in vain
/// naps before it looks again.
class HalfSleeper final : public base::Parker {
  public:
    explicit HalfSleeper(int descriptor) noexcept : descriptor_{descriptor} {}
    void prepare() override {}
    void retract() override {}
    [[nodiscard]] std::chrono::nanoseconds patience() const noexcept override {
        return std::chrono::nanoseconds::max();
    }
    void park(std::chrono::nanoseconds limit, const base::Cancellation* cancellation) override {
        if (std::exchange(was_woken_, false)) {
            nap_.park(limit, cancellation);
            return;
        }
        const base::Uncancelled held;
        limit = std::min<std::chrono::nanoseconds>(limit, std::chrono::hours{1});
        const timespec time{.tv_sec = limit / std::chrono::seconds{1},
                            .tv_nsec = (limit % std::chrono::seconds{1}).count()};
        std::array<pollfd, 2> entries{
            pollfd{.fd = descriptor_, .events = POLLIN, .revents = 0},
            pollfd{.fd = base::descriptor_of(cancellation), .events = POLLIN, .revents = 0}};
        was_woken_ =
            ppoll(entries.data(), entries.size(), &time, nullptr) > 0 && entries[0].revents != 0;
        base::count_system_call();
    }

  private:
    int descriptor_;
    bool was_woken_ = false;
    base::NapParker nap_;
};

/// Until `attempt()` answers something else than `again`.
template <class Attempt>
Status wait_split(const detail::SplitChannel& both, Status again, const Deadline& deadline,
                  Attempt&& attempt) {
    Status status = again;
    HalfSleeper sleeper{both.descriptor};
    const Status waited = base::wait_until(
        [&] {
            status = attempt();
            return status != again;
        },
        deadline, both.policy, sleeper);
    return waited == Status::ok ? status : waited;
}

/// The same of `call(channel)` by the half that sends.
template <class Call>
Status wait_to_send(detail::SplitChannel& both, Status again, const Deadline& deadline,
                    Call&& call) {
    const Status status =
        wait_split(both, again, deadline, [&] { return both.sending(again, call); });
    if (status == Status::timed_out || status == Status::cancelled) {
        both.alone([&](Channel& channel) {
            both.sender_waits = detail::SplitChannel::core_of(channel).wants_room = false;
        });
    }
    return status;
}

}  // namespace

ChannelHalves Channel::split() && {
    auto both = std::make_shared<detail::SplitChannel>(std::move(*this));
    return {ChannelSender{both}, ChannelReceiver{both}};
}

Channel join(ChannelSender sender, ChannelReceiver receiver) {
    if (sender.both_ == nullptr || sender.both_ != receiver.both_) {
        throw base::Error{base::ErrorCode::invalid_argument, "join the halves of a channel",
                          sender.both_ != nullptr ? sender.peer() : std::string{"none"},
                          "they are not those of one channel",
                          "give it the two that one split() gave"};
    }
    return std::move(sender.both_->channel);
}

// --- the half that sends

ChannelSender::ChannelSender(std::shared_ptr<detail::SplitChannel> both) noexcept
    : both_{std::move(both)} {}
ChannelSender::ChannelSender(ChannelSender&&) noexcept = default;
ChannelSender& ChannelSender::operator=(ChannelSender&&) noexcept = default;
ChannelSender::~ChannelSender() = default;

std::size_t ChannelSender::max_piece() const noexcept { return both_->channel.max_piece(); }

Status ChannelSender::try_send(std::span<const std::byte> message) {
    return both_->alone([&](Channel& channel) { return channel.try_send(message); });
}

Status ChannelSender::send(std::span<const std::byte> message, const Deadline& deadline) {
    const Status status = wait_to_send(*both_, Status::full, deadline,
                                       [&](Channel& channel) { return channel.try_send(message); });
    if (status != Status::too_large) return status;
    return send_in_pieces(
        *both_->channel.core_, message,
        [&](std::size_t size, std::span<std::byte>& room) { return claim(size, room, deadline); },
        [&](std::size_t size, std::uint8_t flags) {
            return both_->alone(
                [&](Channel& channel) { return channel.core_->commit(size, flags); });
        });
}

Status ChannelSender::claim(std::size_t size, std::span<std::byte>& room) {
    return both_->alone([&](Channel& channel) {
        const Status status = channel.claim(size, room);
        if (status == Status::ok) channel.core_->wants_room = false;
        return status;
    });
}

Status ChannelSender::claim(std::size_t size, std::span<std::byte>& room,
                            const Deadline& deadline) {
    return wait_to_send(*both_, Status::full, deadline,
                        [&](Channel& channel) { return channel.claim(size, room); });
}

Status ChannelSender::commit(std::size_t size) {
    return both_->alone([&](Channel& channel) { return channel.commit(size); });
}

Status ChannelSender::finish(const Deadline& deadline) {
    return wait_to_send(*both_, Status::timed_out, deadline, [](Channel& channel) {
        channel.core_->wanted_size = 0;
        return channel.finish(Deadline::now());
    });
}

ChannelStats ChannelSender::stats() const { return both_->stats(); }
const std::string& ChannelSender::peer() const noexcept { return both_->channel.peer(); }
std::string ChannelSender::failure() const {
    return both_->alone([](Channel& channel) { return channel.failure(); });
}

// --- the half that receives

ChannelReceiver::ChannelReceiver(std::shared_ptr<detail::SplitChannel> both) noexcept
    : both_{std::move(both)} {}
ChannelReceiver::ChannelReceiver(ChannelReceiver&&) noexcept = default;
ChannelReceiver& ChannelReceiver::operator=(ChannelReceiver&&) noexcept = default;
ChannelReceiver::~ChannelReceiver() = default;

Status ChannelReceiver::look(Piece& message) {
    return both_->receiving([&](Channel& channel) { return channel.look_whole(message); });
}

Status ChannelReceiver::look(Piece& message, const Deadline& deadline) {
    return wait_split(*both_, Status::empty, deadline, [&] { return look(message); });
}

void ChannelReceiver::release() {
    both_->alone([](Channel& channel) { channel.release(); });
}

Status ChannelReceiver::receive(std::vector<std::byte>& into, const Deadline& deadline) {
    return receive(
        [&](std::span<const std::byte> message) { into.assign(message.begin(), message.end()); },
        deadline);
}

ChannelStats ChannelReceiver::stats() const { return both_->stats(); }
const std::string& ChannelReceiver::peer() const noexcept { return both_->channel.peer(); }
std::string ChannelReceiver::failure() const {
    return both_->alone([](Channel& channel) { return channel.failure(); });
}

}  // namespace millrace::message
