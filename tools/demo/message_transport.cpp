// The message channel as the demo uses it: one send per record, header and content written in
// place, one receive per record, read in place.
#include <cstring>
#include <utility>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/message/channel.hpp"
#include "rendezvous.hpp"
#include "transport.hpp"

namespace millrace::tools::demo {
namespace {

message::ChannelOptions channel_options(const TransportOptions& options) {
    message::ChannelOptions channel;
    channel.ring_bytes = options.ring_bytes;
    return channel;
}

Effort effort_of(const message::Channel& channel) {
    const message::ChannelStats stats = channel.stats();
    return {stats.frame_writes + stats.other_writes + stats.credit_writes + stats.credit_reads +
                stats.events_sent,
            base::system_calls_of_this_thread()};
}

[[noreturn]] void fail(std::string attempted, base::Status status,
                       const message::Channel& channel) {
    const auto code =
        status == base::Status::timed_out ? base::ErrorCode::timed_out : base::ErrorCode::peer_lost;
    std::string cause{name_of(status)};
    if (const std::string failure = channel.failure(); !failure.empty()) cause += ": " + failure;
    throw base::Error{code, std::move(attempted), "a message channel", std::move(cause), ""};
}

class MessageSender final : public Sender {
  public:
    MessageSender(message::Channel channel, const base::Deadline& deadline)
        : channel_{std::move(channel)}, deadline_{deadline} {}

    void send(const RecordHeader& header, std::span<const std::byte> content) override {
        const auto fill = [&](std::span<std::byte> room) {
            std::memcpy(room.data(), &header, sizeof header);
            if (!content.empty()) {
                std::memcpy(room.data() + sizeof header, content.data(), content.size());
            }
        };
        const base::Status status = channel_.send(sizeof header + content.size(), fill, deadline_);
        if (status != base::Status::ok) fail("send a record", status, channel_);
    }
    void finish() override {
        const base::Status status = channel_.close(deadline_);
        if (status != base::Status::ok) fail("close", status, channel_);
    }
    [[nodiscard]] Effort effort() override { return effort_of(channel_); }

  private:
    message::Channel channel_;
    base::Deadline deadline_;
};

class MessageReceiver final : public Receiver {
  public:
    MessageReceiver(message::Listener listener, const base::Deadline& deadline)
        : channel_{listener.accept(deadline)}, deadline_{deadline} {}

    bool receive(const Handler& handler) override {
        const auto take = [&](std::span<const std::byte> message) {
            RecordHeader header;
            if (message.size() < sizeof header) {
                throw base::Error{base::ErrorCode::protocol, "receive a record",
                                  "a message channel", "the message is shorter than a header", ""};
            }
            std::memcpy(&header, message.data(), sizeof header);
            handler(header, message.subspan(sizeof header));
        };
        const base::Status status = channel_.receive(take, deadline_);
        if (status == base::Status::closed) {
            // Between hosts the sender hears only so that all has been read.
            (void)channel_.close(deadline_);
            return false;
        }
        if (status != base::Status::ok) fail("receive a record", status, channel_);
        return true;
    }
    [[nodiscard]] Effort effort() override { return effort_of(channel_); }

  private:
    message::Channel channel_;
    base::Deadline deadline_;
};

}  // namespace

Transport message_transport() {
    return {"message", "message channel", false,
            [](const TransportOptions& options) -> std::unique_ptr<Receiver> {
                auto listener =
                    message::Listener::listen(address_to_listen(options), channel_options(options));
                tell_listening(options, listener.address());
                return std::make_unique<MessageReceiver>(std::move(listener), options.deadline);
            },
            [](const TransportOptions& options) -> std::unique_ptr<Sender> {
                return std::make_unique<MessageSender>(
                    message::connect(address_to_connect(options), channel_options(options),
                                     options.deadline),
                    options.deadline);
            }};
}

}  // namespace millrace::tools::demo
