// Both ends of a flow queue in this process, for tests that drive them in turn.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "millrace/flow/consumer.hpp"
#include "millrace/flow/producer.hpp"

namespace millrace::flow::test {

[[nodiscard]] inline std::string unique_address() {
    static std::atomic<int> number{0};
    return "unix:@millrace-flow-test-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

/// One endpoint for all queues of the process: opening one is slow on some devices.
/// Not on a link, where much happens while a request is on its way.
[[nodiscard]] inline bool completes_at_once(const connect::Endpoint& endpoint) {
    if (std::getenv("MILLRACE_WIRE") != nullptr) return false;
    return endpoint.describe().find(", fast") != std::string::npos;
}

[[nodiscard]] inline Options with_endpoint(Options options) {
    static const std::shared_ptr<connect::Endpoint> endpoint = connect::Endpoint::open();
    options.endpoint = endpoint;
    return options;
}

template <class T, ring::Design D>
class Ends {
  public:
    explicit Ends(const Options& options) : Ends{options, options} {}
    Ends(const Options& producer_options, const Options& consumer_options) {
        using namespace std::chrono_literals;
        Listener listener = Listener::listen(unique_address(), with_endpoint(consumer_options));
        std::thread other{[&] {
            producer_.emplace(Producer<T, D>::connect(
                listener.address(), with_endpoint(producer_options), base::Deadline::after(40s)));
        }};
        consumer_.emplace(Consumer<T, D>::accept(listener, base::Deadline::after(40s)));
        other.join();
    }

    [[nodiscard]] Producer<T, D>& producer() { return *producer_; }
    [[nodiscard]] Consumer<T, D>& consumer() { return *consumer_; }
    void drop_producer() { producer_.reset(); }
    void drop_consumer() { consumer_.reset(); }

    /// Dequeues, while calls of the passive producer send what is stranded there.
    template <class... Into>
    base::Status take(Into&... into) {
        return until_there([&] { return consumer_->try_dequeue(into...); });
    }
    /// The same in place.
    template <class Item>
    base::Status peek(Item& item) {
        return until_there([&] { return consumer_->peek(item); });
    }
    [[nodiscard]] static bool completes_at_once() {
        return test::completes_at_once(*with_endpoint({}).endpoint);
    }
    /// Of items that fit: the producer's own ring, unless it stores, and the consumer's.
    [[nodiscard]] std::uint64_t rings() const {
        return producer_->explain().find("carrier: store") != std::string::npos ? 1 : 2;
    }
    /// True if the device keeps the order of one WRITE's bytes.
    [[nodiscard]] bool in_order() const {
        return producer_->explain().find("1 WRITE by the producer") != std::string::npos;
    }

  private:
    template <class Try>
    base::Status until_there(Try&& try_once) {
        using namespace std::chrono_literals;
        const base::Deadline deadline = base::Deadline::after(40s);
        for (;;) {
            const base::Status status = try_once();
            if (status != base::Status::empty || deadline.expired()) return status;
            (void)producer_->flush(base::Deadline::now());
        }
    }

    std::optional<Producer<T, D>> producer_;
    std::optional<Consumer<T, D>> consumer_;
};

}  // namespace millrace::flow::test
