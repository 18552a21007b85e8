// Ends of flow queues that several threads share: each item once, order of each writer, waiting,
// closing, looking in while another waits.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flow/any_ends.hpp"
#include "flow/ends.hpp"
#include "millrace/flow/shared.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

constexpr std::uint64_t writers = 3;
constexpr std::uint64_t readers = 3;
constexpr std::uint64_t each = 20'000;

Deadline sharing_patience() { return Deadline::after(60s); }

using SharedNote = test::Numbered;

/// Every byte of a note follows from who wrote it and its number.
SharedNote make_note(std::uint64_t writer, std::uint64_t number) {
    SharedNote note{writer << 32 | number, {}};
    for (std::uint32_t& word : note.body) {
        word = static_cast<std::uint32_t>(writer * 1'000'003 + number);
    }
    return note;
}
std::uint64_t writer_of(const SharedNote& note) { return note.number >> 32; }
std::uint64_t number_of(const SharedNote& note) { return note.number & 0xffff'ffff; }
std::span<const std::byte> as_bytes(const SharedNote& note) {
    return std::as_bytes(std::span{&note, 1});
}

/// Both ends, shared, of a queue in this process.
template <class Producer, class Consumer>
struct SharedEnds {
    Shared<Producer> producer;
    Shared<Consumer> consumer;
};
template <class T>
auto share(ring::Design design, Options options) {
    Listener listener = Listener::listen(test::unique_address(), test::with_endpoint(options));
    std::optional<AnyProducer<T>> producer;
    std::thread other{[&] {
        producer.emplace(AnyProducer<T>::connect(design, listener.address().to_string(),
                                                 test::with_endpoint(options), sharing_patience()));
    }};
    auto consumer = AnyConsumer<T>::accept(design, listener, sharing_patience());
    other.join();
    return SharedEnds<AnyProducer<T>, AnyConsumer<T>>{Shared{std::move(*producer)},
                                                      Shared{std::move(consumer)}};
}

/// Each item was seen once, and by each reader in its writer's order.
class Ledger {
  public:
    /// What one reader keeps.
    using Last = std::array<std::uint64_t, writers>;

    void take(Last& last, const SharedNote& note) {
        const std::uint64_t writer = writer_of(note);
        const std::uint64_t number = number_of(note);
        if (writer >= writers || number == 0 || number > each ||
            note != make_note(writer, number)) {
            ++wrong_;
            return;
        }
        if (number <= last[writer]) ++disordered_;
        last[writer] = number;
        if (seen_[writer * each + number - 1].exchange(true)) ++twice_;
        ++taken_;
    }
    void expect_all() const {
        EXPECT_EQ(wrong_, 0U);
        EXPECT_EQ(disordered_, 0U);
        EXPECT_EQ(twice_, 0U);
        EXPECT_EQ(taken_, writers * each);
    }

  private:
    std::vector<std::atomic<bool>> seen_ = std::vector<std::atomic<bool>>(writers * each);
    std::atomic<std::uint64_t> wrong_{0}, disordered_{0}, twice_{0}, taken_{0};
};

/// All writers write, all readers read until `closed`; then the ledger is looked at.
template <class Ends, class Write, class Read>
void exchange(Ends& ends, Write&& write, Read&& read) {
    Ledger ledger;
    std::atomic<std::uint64_t> failed{0};
    std::vector<std::thread> reading;
    for (std::uint64_t r = 0; r < readers; ++r) {
        reading.emplace_back([&] {
            Ledger::Last last{};
            for (;;) {
                SharedNote note;
                const Status status = read(ends.consumer, note);
                if (status == Status::closed) return;
                if (status != Status::ok) {
                    ++failed;
                    return;
                }
                ledger.take(last, note);
            }
        });
    }
    std::vector<std::thread> writing;
    for (std::uint64_t w = 0; w < writers; ++w) {
        writing.emplace_back([&, w] {
            for (std::uint64_t n = 1; n <= each; ++n) {
                if (write(ends.producer, make_note(w, n)) != Status::ok) {
                    ++failed;
                    return;
                }
            }
        });
    }
    for (std::thread& thread : writing) thread.join();
    EXPECT_EQ(ends.producer.close(sharing_patience()), Status::ok);
    for (std::thread& thread : reading) thread.join();
    EXPECT_EQ(failed, 0U);
    ledger.expect_all();
}

class SharedQueue : public testing::TestWithParam<const char*> {
  protected:
    [[nodiscard]] static auto named() { return ring::parse_design(GetParam()); }
};

TEST_P(SharedQueue, EachItemArrivesOnceAndInItsWritersOrder) {
    auto ends = share<SharedNote>(named().design, Options{.ring = {.capacity = 64}});
    exchange(
        ends,
        [](auto& producer, const SharedNote& note) {
            return producer.enqueue(note, sharing_patience());
        },
        [](auto& consumer, SharedNote& note) {
            return consumer.dequeue(note, sharing_patience());
        });
    EXPECT_EQ(ends.producer.stats().items, writers * each);
    EXPECT_EQ(ends.consumer.stats().items, writers * each);
}

TEST_P(SharedQueue, EachFrameArrivesOnceAndInItsWritersOrder) {
    auto ends = share<Bytes>(named().design, Options{.ring = {.capacity = 8192}});
    exchange(
        ends,
        [](auto& producer, const SharedNote& note) {
            return producer.enqueue(as_bytes(note), sharing_patience());
        },
        [](auto& consumer, SharedNote& note) {
            thread_local std::vector<std::byte> frame;
            const Status status = consumer.dequeue(frame, sharing_patience());
            if (status == Status::ok && frame.size() == sizeof note) {
                std::memcpy(&note, frame.data(), sizeof note);
            }
            return status;
        });
}

TEST_P(SharedQueue, TriesOfManyThreadsLoseNothing) {
    auto ends = share<SharedNote>(named().design, Options{.ring = {.capacity = 16}});
    const auto until = [](Status again, auto&& try_once) {
        Status status = again;
        base::NapParker nap;
        const Status waited = base::wait_until([&] { return (status = try_once()) != again; },
                                               sharing_patience(), base::WaitPolicy{}, nap);
        return waited == Status::ok ? status : waited;
    };
    exchange(
        ends,
        [&](auto& producer, const SharedNote& note) {
            return until(Status::full, [&] { return producer.try_enqueue(note); });
        },
        [&](auto& consumer, SharedNote& note) {
            return until(Status::empty, [&] { return consumer.try_dequeue(note); });
        });
}

INSTANTIATE_TEST_SUITE_P(Designs, SharedQueue,
                         testing::Values("push1/watermark/pull", "push1/watermark/push",
                                         "push1/watermark/pull+dynamic+mover", "push2/event/push",
                                         "pull/pull/push"),
                         [](const auto& point) {
                             std::string name = point.param;
                             for (char& c : name) {
                                 if (c == '/' || c == '+') c = '_';
                             }
                             return name;
                         });

struct Design2Ends : testing::Test {
    using Producer = flow::Producer<SharedNote, ring::design_2>;
    using Consumer = flow::Consumer<SharedNote, ring::design_2>;

    [[nodiscard]] static SharedEnds<Producer, Consumer> share_two(std::uint64_t capacity) {
        const Options options = test::with_endpoint(Options{.ring = {.capacity = capacity}});
        Listener listener = Listener::listen(test::unique_address(), options);
        std::optional<Producer> producer;
        std::thread other{[&] {
            producer.emplace(Producer::connect(listener.address(), options, sharing_patience()));
        }};
        auto consumer = Consumer::accept(listener, sharing_patience());
        other.join();
        return {Shared{std::move(*producer)}, Shared{std::move(consumer)}};
    }
    /// Waits until `holds()`.
    template <class Holds>
    [[nodiscard]] static bool eventually(Holds&& holds) {
        base::NapParker nap;
        return base::wait_until(holds, sharing_patience(), base::WaitPolicy{}, nap) == Status::ok;
    }
};
using SharedEnd = Design2Ends;

TEST_F(SharedEnd, WhileOneWaitsTriesOfOthersAnswerAndWaitsOfOthersEndAtTheirDeadline) {
    auto ends = share_two(4);
    std::atomic<Status> waited{Status::ok};
    SharedNote first;
    std::thread reader{[&] { waited.store(ends.consumer.dequeue(first, sharing_patience())); }};
    std::this_thread::sleep_for(30ms);
    SharedNote other;
    EXPECT_EQ(ends.consumer.try_dequeue(other), Status::empty);
    EXPECT_EQ(ends.consumer.dequeue(other, Deadline::after(20ms)), Status::timed_out);
    base::Cancellation cancellation;
    cancellation.request();
    EXPECT_EQ(ends.consumer.dequeue(other, sharing_patience().cancelled_by(cancellation)),
              Status::cancelled);
    EXPECT_EQ(ends.consumer.stats().items, 0U) << "a waiting thread lets others look";
    EXPECT_NE(ends.consumer.explain().find("push1/watermark/push"), std::string::npos);
    EXPECT_EQ(ends.producer.enqueue(make_note(1, 7), sharing_patience()), Status::ok);
    reader.join();
    EXPECT_EQ(waited, Status::ok);
    EXPECT_EQ(first, make_note(1, 7));
}

TEST_F(SharedEnd, ClosingEndsTheWaitOfOthers) {
    auto ends = share_two(4);
    std::array<std::atomic<Status>, 3> answers{};
    std::vector<std::thread> waiting;
    for (auto& answer : answers) {
        waiting.emplace_back([&] {
            SharedNote note;
            answer.store(ends.consumer.dequeue(note, sharing_patience()));
        });
    }
    std::this_thread::sleep_for(30ms);
    EXPECT_EQ(ends.consumer.close(sharing_patience()), Status::ok);
    for (std::thread& thread : waiting) thread.join();
    for (auto& answer : answers) EXPECT_EQ(answer, Status::closed);
    EXPECT_TRUE(eventually([&] {
        return ends.producer.enqueue(make_note(0, 1), sharing_patience()) == Status::closed;
    }));
}

TEST_F(SharedEnd, ABatchAndItemsInPlaceAreNotTornApart) {
    constexpr std::uint64_t batch = 4;
    auto ends = share_two(64);
    std::atomic<bool> failed{false};
    std::vector<std::thread> writing;
    for (std::uint64_t w = 0; w < 2; ++w) {
        writing.emplace_back([&, w] {
            for (std::uint64_t n = 1; n <= 1000; ++n) {
                // Four equal notes, in place.
                const Status status =
                    ends.producer.alone(sharing_patience(), [&](Producer& producer) {
                        for (std::uint64_t i = 0; i < batch; ++i) {
                            SharedNote* place = nullptr;
                            if (const Status claimed = producer.claim(place, sharing_patience());
                                claimed != Status::ok) {
                                return claimed;
                            }
                            *place = make_note(w, n);
                            if (const Status sent = producer.commit(); sent != Status::ok)
                                return sent;
                        }
                        return Status::ok;
                    });
                if (status != Status::ok) failed = true;
            }
            if (ends.producer.flush(sharing_patience()) != Status::ok) failed = true;
        });
    }
    std::uint64_t torn = 0;
    std::array<SharedNote, batch> notes;
    Status status = Status::ok;
    for (std::uint64_t n = 0; n < 2000 && status == Status::ok; ++n) {
        for (SharedNote& note : notes) {
            if (status == Status::ok) status = ends.consumer.dequeue(note, sharing_patience());
        }
        for (const SharedNote& note : notes) torn += note == notes.front() ? 0 : 1;
    }
    EXPECT_EQ(status, Status::ok);
    for (std::thread& thread : writing) thread.join();
    EXPECT_FALSE(failed);
    EXPECT_EQ(torn, 0U);
    const std::vector<SharedNote> some(3, make_note(1, 2));
    EXPECT_EQ(ends.producer.try_enqueue_batch(std::span<const SharedNote>{some}).count, 3U);
    std::size_t taken = 0;
    EXPECT_TRUE(eventually([&] {
        taken += ends.consumer.try_dequeue_batch(std::span<SharedNote>{notes}).count;
        return taken == 3;
    }));
}

}  // namespace
}  // namespace millrace::flow
