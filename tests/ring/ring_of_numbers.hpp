// Both ends of a ring of numbers in this process, driven in turn by one thread: for tests that play
// an order of events on the code.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/ring/receiver.hpp"
#include "millrace/ring/sender.hpp"
#include "millrace/ring/watermark.hpp"
#include "ring/links.hpp"

namespace millrace::ring {

inline constexpr std::uint64_t slot = slot_bytes_of(8, 8);

/// A ring of `capacity` numbers between two links in this process.
template <Design D>
class Ring {
  public:
    explicit Ring(std::uint64_t capacity, std::uint32_t credit_parts = 8,
                  Carrier carrier = Carrier::automatic) {
        const RingOptions options{
            .capacity = capacity, .credit_parts = credit_parts, .carrier = carrier};
        const ItemFacts numbers{.size = 8, .alignment = 8};
        static std::atomic<int> number{0};
        auto link = link_options("ring replay");
        link.endpoint = endpoint();
        auto listener = connect::Listener::listen(
            connect::Address::parse("unix:@millrace-ring-replay-" + std::to_string(getpid()) + "-" +
                                    std::to_string(++number)),
            link);
        const base::Deadline deadline = base::Deadline::after(patience());
        std::thread other{[&] {
            sender.emplace(endpoint(), connect::connect(listener.address(), link, deadline), D,
                           options, numbers, deadline);
        }};
        receiver.emplace(endpoint(), listener.accept(deadline), D, options, numbers, deadline);
        other.join();
    }

    /// Lays the next number, without sending it.
    base::Status lay() {
        const base::Status status = sender->reserve(slot);
        if (status != base::Status::ok) return status;
        store_word(sender->at(), produced);
        sender->lay_mark(sender->at() + slot - mark_bytes,
                         slot_mark(sender->position(), sender->terms().initial));
        sender->append(slot);
        ++produced;
        return base::Status::ok;
    }
    base::Status put() {
        const base::Status status = lay();
        return status == base::Status::ok ? sender->send() : status;
    }
    /// Puts until both rings are full.
    void fill() {
        while (put() == base::Status::ok) ASSERT_LE(produced - consumed, 10 * capacity());
    }
    /// Puts until both rings are full, as nobody takes anything.
    void fill_both() {
        ASSERT_TRUE(soon([&] {
            while (put() == base::Status::ok) {
            }
            return produced - consumed == 2 * capacity();
        }));
    }
    /// The next number has come; it is taken, and is the right one.
    [[nodiscard]] bool take() {
        if (!receiver->has_slot(slot)) return false;
        EXPECT_EQ(load_word(receiver->slot()), consumed);
        receiver->release_slot(slot);
        ++consumed;
        return true;
    }
    /// Takes everything that was put, what is stranded included.
    void take_all() {
        while (consumed != produced) {
            ASSERT_TRUE(soon([&] {
                (void)flush_once();
                (void)receiver->idle();
                return take();
            })) << consumed;
        }
    }
    /// Calls of both ends, until `done`. On a device that completes at once nothing that is not
    /// done after some calls ever will be.
    template <class Done>
    [[nodiscard]] bool soon(Done&& done) {
        const bool at_once = completes_at_once();
        const base::Deadline deadline = base::Deadline::after(patience());
        for (int calls = 0; at_once ? calls < 500 : !deadline.expired(); ++calls) {
            if (done()) return true;
            std::this_thread::sleep_for(std::chrono::microseconds{50});
        }
        return false;
    }
    [[nodiscard]] base::Status flush_once() {
        return sender->flush(base::Deadline::now(), base::WaitPolicy::polling());
    }
    [[nodiscard]] std::uint64_t capacity() const { return sender->terms().capacity(); }

    std::optional<Sender<D>> sender;
    std::optional<Receiver<D>> receiver;
    std::uint64_t produced = 0;
    std::uint64_t consumed = 0;
};

}  // namespace millrace::ring
