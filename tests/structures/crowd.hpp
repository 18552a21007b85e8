// What the tests of structures with many ends share: items that say whose they are, producers in
// threads and in processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/producer.hpp"

namespace millrace::flow::test {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

/// Generous: it only ends tests that have failed.
inline Deadline soon() { return Deadline::after(40s); }

inline std::string fresh_address() {
    static std::atomic<int> count{0};
    return "unix:@millrace-structures-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

/// The `number`th item of `producer`, which no other one has.
struct Tagged {
    std::uint64_t producer = 0;
    std::uint64_t number = 0;
    std::uint64_t check = 0;

    static Tagged make(std::uint64_t producer, std::uint64_t number) {
        return {producer, number, producer * 1'000'003 ^ number * 7919};
    }
    friend bool operator==(const Tagged&, const Tagged&) = default;
    [[nodiscard]] bool is_whole() const {
        const Tagged right = make(producer, number);
        return std::memcmp(this, &right, sizeof right) == 0;
    }
};

/// Checks that each producer's items come whole, in order, without a gap.
class InOrder {
  public:
    explicit InOrder(std::size_t producers) : next_(producers, 0) {}
    void see(const Tagged& item) {
        ASSERT_TRUE(item.is_whole());
        ASSERT_LT(item.producer, next_.size());
        ASSERT_EQ(item.number, next_[item.producer]) << "of producer " << item.producer;
        ++next_[item.producer];
        ++total_;
    }
    [[nodiscard]] std::uint64_t of(std::size_t producer) const { return next_[producer]; }
    [[nodiscard]] std::uint64_t total() const { return total_; }

  private:
    std::vector<std::uint64_t> next_;
    std::uint64_t total_ = 0;
};

/// Small rings, so that they wrap and fill.
inline Options small(std::uint64_t capacity = 8) {
    Options options;
    options.ring.capacity = capacity;
    return options;
}

/// Both ends of a queue, in one thread.
template <class T>
struct QueueEnds {
    explicit QueueEnds(const Options& options = small(64)) {
        Listener listener = Listener::listen(fresh_address(), options);
        auto connecting = std::async(std::launch::async, [&] {
            return Producer<T>::connect(listener.address(), options, soon());
        });
        consumer.emplace(Consumer<T>::accept(listener, soon()));
        producer.emplace(connecting.get());
    }
    std::optional<Consumer<T>> consumer;
    std::optional<Producer<T>> producer;
};

/// An item that has been enqueued, while calls of its producer send what is stranded there.
template <class Consumer, class Producer, class Item>
Status take(Consumer& consumer, Producer& producer, Item& item) {
    const Deadline deadline = soon();
    Status status;
    while ((status = consumer.try_dequeue(item)) == Status::empty && !deadline.expired()) {
        (void)producer.flush(Deadline::now());
    }
    return status;
}

/// Takes items until an expected crowd has come and gone.
template <class In>
void take_all(In& in, InOrder& seen) {
    Tagged item;
    Status status;
    while ((status = in.dequeue(item, soon())) == Status::ok) {
        seen.see(item);
        ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
    EXPECT_EQ(status, Status::closed);
}

template <class Call>
base::Error error_of(Call&& call) {
    try {
        call();
    } catch (const base::Error& error) {
        return error;
    }
    ADD_FAILURE() << "no error was thrown";
    return base::Error{base::ErrorCode::system, "nothing", "", "", ""};
}

}  // namespace millrace::flow::test
