// Flow queues as the demo uses them: framed bytes, one claim and commit per record, read in place.
#include <cstring>
#include <utility>

#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/ring/design.hpp"
#include "rendezvous.hpp"
#include "transport.hpp"

namespace millrace::tools::demo {
namespace {

flow::Options flow_options(const TransportOptions& options) {
    flow::Options flow;
    flow.ring.capacity = options.ring_bytes;
    return flow;
}

[[noreturn]] void fail(std::string attempted, base::Status status) {
    const auto code =
        status == base::Status::timed_out ? base::ErrorCode::timed_out : base::ErrorCode::peer_lost;
    throw base::Error{code, std::move(attempted), "a flow queue", std::string{name_of(status)}, ""};
}

template <ring::Design D>
class FlowSender final : public Sender {
  public:
    explicit FlowSender(const TransportOptions& options)
        : deadline_{options.deadline},
          producer_{flow::Producer<flow::Bytes, D>::connect(address_to_connect(options),
                                                            flow_options(options), deadline_)} {}

    void send(const RecordHeader& header, std::span<const std::byte> content) override {
        std::span<std::byte> place;
        base::Status status = producer_.claim(sizeof header + content.size(), place, deadline_);
        if (status == base::Status::ok) {
            std::memcpy(place.data(), &header, sizeof header);
            if (!content.empty()) {
                std::memcpy(place.data() + sizeof header, content.data(), content.size());
            }
            status = producer_.commit();
        }
        if (status != base::Status::ok) fail("send a record", status);
    }
    /// A passive producer moves data only inside its calls: what found the ring full goes now.
    void flush() override {
        const base::Status status = producer_.flush(deadline_);
        if (status != base::Status::ok) fail("flush", status);
    }
    void finish() override {
        const base::Status status = producer_.close(deadline_);
        if (status != base::Status::ok) fail("close", status);
    }
    [[nodiscard]] Effort effort() override {
        return {producer_.stats().ring.work_requests, base::system_calls_of_this_thread()};
    }

  private:
    base::Deadline deadline_;
    flow::Producer<flow::Bytes, D> producer_;
};

template <ring::Design D>
class FlowReceiver final : public Receiver {
  public:
    FlowReceiver(flow::Listener listener, const base::Deadline& deadline)
        : deadline_{deadline},
          consumer_{flow::Consumer<flow::Bytes, D>::accept(listener, deadline)} {}

    bool receive(const Handler& handler) override {
        std::span<const std::byte> item;
        const base::Status status = consumer_.peek(item, deadline_);
        if (status == base::Status::closed) return false;
        if (status != base::Status::ok) fail("receive a record", status);
        RecordHeader header;
        if (item.size() < sizeof header) {
            throw base::Error{base::ErrorCode::protocol, "receive a record", "a flow queue",
                              "the item is shorter than a header", ""};
        }
        std::memcpy(&header, item.data(), sizeof header);
        handler(header, item.subspan(sizeof header));
        consumer_.release();
        return true;
    }
    [[nodiscard]] Effort effort() override {
        return {consumer_.stats().ring.work_requests, base::system_calls_of_this_thread()};
    }

  private:
    base::Deadline deadline_;
    flow::Consumer<flow::Bytes, D> consumer_;
};

template <ring::Design D>
Transport make(std::string key, std::string title) {
    return {std::move(key), std::move(title), false,
            [](const TransportOptions& options) -> std::unique_ptr<Receiver> {
                auto listener =
                    flow::Listener::listen(address_to_listen(options), flow_options(options));
                tell_listening(options, listener.address());
                return std::make_unique<FlowReceiver<D>>(std::move(listener), options.deadline);
            },
            [](const TransportOptions& options) -> std::unique_ptr<Sender> {
                return std::make_unique<FlowSender<D>>(options);
            }};
}

}  // namespace

std::vector<Transport> flow_transports() {
    return {make<ring::design_1>("flow-1", "flow queue, design 1"),
            make<ring::design_2>("flow-2", "flow queue, design 2")};
}

}  // namespace millrace::tools::demo
