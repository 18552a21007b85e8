// A consumer that lies about how much it has consumed, and one whose device tears its words. It
// speaks the ring's agreement as every consumer does, and then counts as the test wants.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "flow/ends.hpp"
#include "millrace/end/send_window.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/ring/position.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using ring::PositionWord;

constexpr std::uint64_t slot = 16;  ///< of one std::uint64_t
constexpr std::uint64_t liar_capacity = 8;

/// The consumer's end, in the hands of the test.
template <ring::Design D>
class Liar {
  public:
    explicit Liar(const std::string& address) {
        connect::LinkOptions options = ring::link_options("flow queue");
        options.endpoint = test::with_endpoint({}).endpoint;
        link_.emplace(
            connect::connect(connect::Address::parse(address), options, Deadline::after(40s)));
        const ring::Terms terms =
            ring::agree(*link_, ring::Role::consumer, D, {.capacity = liar_capacity},
                        detail::item_facts<std::uint64_t>(), Deadline::after(40s));
        auto& domain = link_->protection_domain();
        ring_ = domain.allocate(terms.ring_bytes, verbs::Access::remote_write);
        page_ = domain.allocate(sizeof(end::WakeUpPage),
                                verbs::Access::remote_write | verbs::Access::remote_read);
        page().progress.store(PositionWord::pack(0));
        ring::say_places(*link_, {.ring = ring_.remote(),
                                  .page = page_.remote(),
                                  .credit = {},
                                  .transfer = {},
                                  .taken = {}});
        const ring::Places theirs = ring::wait_for_places(*link_, Deadline::after(40s));
        window_.emplace(*link_);
        credit_ = end::CounterPush{*window_, theirs.credit};
    }
    /// Says `word` where the producer of this design looks for credit.
    void claim(std::uint64_t word) {
        page().progress.store(word);
        if (D.space == ring::SpaceNotification::pull) return;
        base::NapParker nap;
        ASSERT_EQ(base::wait_until([&] { return credit_.offer(word) == Status::ok; },
                                   Deadline::after(40s), {}, nap),
                  Status::ok);
    }

  private:
    [[nodiscard]] end::WakeUpPage& page() {
        return *reinterpret_cast<end::WakeUpPage*>(page_.data());
    }
    verbs::RegisteredBuffer ring_;
    verbs::RegisteredBuffer page_;
    std::optional<connect::Link> link_;
    std::optional<end::SendWindow> window_;
    end::CounterPush credit_;
};

template <class Design>
class FlowQueueLiar : public ::testing::Test {
  protected:
    static constexpr ring::Design design = Design::value;

    void SetUp() override {
        Listener listener = Listener::listen(
            test::unique_address(), test::with_endpoint({.ring = {.capacity = liar_capacity}}));
        const std::string address = listener.address().to_string();
        std::thread other{[&] { liar.emplace(address); }};
        producer.emplace(Producer<std::uint64_t, design>::accept(listener, Deadline::after(40s)));
        other.join();
    }
    /// Enqueues until it does not go on, behind `least` of all: a link may take longer for the
    /// first of them than the last is waited for.
    Status fill(std::uint64_t least) {
        const Deadline deadline = Deadline::after(40s);
        while (true) {
            const Status status = producer->enqueue(sent, Deadline::after(50ms));
            if (status == Status::timed_out && sent < least && !deadline.expired()) continue;
            if (status != Status::ok) return status;
            ++sent;
        }
    }
    /// Behind a claim, which rings for nobody: whoever has fallen asleep looks only now and then.
    Status enqueue_when_claimed() {
        const Deadline deadline = Deadline::after(40s);
        Status status = Status::timed_out;
        while (status == Status::timed_out && !deadline.expired()) {
            status = producer->enqueue(1, Deadline::after(5ms));
        }
        return status;
    }
    /// Of all that the rings hold.
    Status fill_all() { return fill(rings() * liar_capacity); }
    [[nodiscard]] std::uint64_t rings() const {
        return producer->explain().find("carrier: store") != std::string::npos ? 1 : 2;
    }
    std::optional<Liar<design>> liar;
    std::optional<Producer<std::uint64_t, design>> producer;
    std::uint64_t sent = 0;
};
using LiarDesigns = ::testing::Types<std::integral_constant<ring::Design, ring::design_1>,
                                     std::integral_constant<ring::Design, ring::design_2>>;
TYPED_TEST_SUITE(FlowQueueLiar, LiarDesigns);

TYPED_TEST(FlowQueueLiar, WhoConsumesMoreThanWasSentIsLostAndTheReasonIsTold) {
    ASSERT_EQ(this->fill_all(), Status::timed_out);
    EXPECT_EQ(this->sent, this->rings() * liar_capacity) << "nothing was consumed, and all is full";
    // The first ring was sent; what was not stored there waits here.
    this->liar->claim(PositionWord::pack((liar_capacity + 1) * slot));
    EXPECT_EQ(this->enqueue_when_claimed(), Status::peer_lost);
    EXPECT_EQ(this->producer->try_enqueue(1), Status::peer_lost);
    EXPECT_EQ(this->producer->flush(Deadline::after(40s)), Status::peer_lost);
    EXPECT_EQ(this->producer->close(Deadline::after(40s)), Status::peer_lost);
    const std::string text = this->producer->explain();
    EXPECT_NE(text.find("claims to have consumed more than the 128 bytes"), std::string::npos)
        << text;
}

TYPED_TEST(FlowQueueLiar, WhoConsumesBeforeAnythingWasSentIsLost) {
    this->liar->claim(PositionWord::pack(1000 * slot));
    const Deadline deadline = Deadline::after(40s);
    Status status = Status::timed_out;  // until the claim has come
    while (status == Status::timed_out && !deadline.expired()) status = this->fill(0);
    EXPECT_EQ(status, Status::peer_lost);
    EXPECT_LE(this->sent, 2 * liar_capacity);
}

TYPED_TEST(FlowQueueLiar, WhoGoesBackIsNotBelievedAndNothingIsOverwritten) {
    ASSERT_EQ(this->fill_all(), Status::timed_out);
    this->liar->claim(PositionWord::pack(2 * slot));
    ASSERT_EQ(this->fill(this->rings() * liar_capacity + 2), Status::timed_out);
    EXPECT_EQ(this->sent, this->rings() * liar_capacity + 2);
    this->liar->claim(PositionWord::pack(std::uint64_t{0} - 3 * slot));
    EXPECT_EQ(this->fill(0), Status::timed_out);
    EXPECT_EQ(this->sent, this->rings() * liar_capacity + 2);
}

// What a device that copies byte by byte can show of a counter that moves meanwhile.
TYPED_TEST(FlowQueueLiar, AHalfWrittenWordIsPassedOverUntilItIsWhole) {
    ASSERT_EQ(this->fill_all(), Status::timed_out);
    const std::uint64_t half = PositionWord::pack(0) >> 32 << 32;
    for (std::uint64_t units = 1; units <= 2 * liar_capacity; ++units) {
        this->liar->claim(half | units);
        ASSERT_EQ(this->producer->enqueue(1, Deadline::after(5ms)), Status::timed_out) << units;
    }
    this->liar->claim(PositionWord::pack(slot));
    EXPECT_EQ(this->enqueue_when_claimed(), Status::ok);
    ASSERT_EQ(this->producer->enqueue(1, Deadline::after(5ms)), Status::timed_out);
}

}  // namespace
}  // namespace millrace::flow
