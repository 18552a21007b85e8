// Queues that connect without waiting: in the thread that accepts them, by descriptors alone and by
// coroutines; and peers that never answer, die in the middle, or say what cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flow/any_ends.hpp"
#include "flow/conformance.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/connector.hpp"
#include "millrace/flow/coroutine.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/ring/terms.hpp"
#include "support/failed_connect.hpp"
#include "support/readable.hpp"

namespace millrace::flow {
namespace {

using namespace test;
using base::ErrorCode;
using millrace::test::becomes_readable;
using millrace::test::code_of_failure;
using millrace::test::is_readable;

Deadline in_time() { return Deadline::after(40s); }
Options small_ring(Options options = {}) {
    options.ring.capacity = 8;
    return with_endpoint(std::move(options));
}

/// Goes on with both in one thread, by their descriptors alone, until the connector has its end and
/// the listener's has come in. False: that takes too long.
template <class Far, class Near, class TryAccept>
[[nodiscard]] bool connects_in_loop(Connector<Far>& connector, Listener& listener,
                                    TryAccept try_accept, std::optional<Near>& near,
                                    std::optional<Far>& far) {
    const Deadline deadline = in_time();
    while (!near || !far) {
        if (deadline.expired()) return false;
        if (!far) far = connector.try_connect();
        if (!near) near = try_accept();
        if (near) (void)near->look_around();  // it may have words to say still
        if (near && far) continue;
        pollfd entries[] = {
            {.fd = far ? -1 : connector.descriptor(), .events = POLLIN, .revents = 0},
            {.fd = near ? near->descriptor() : listener.descriptor(),
             .events = POLLIN,
             .revents = 0}};
        if (poll(entries, 2, 40'000) <= 0) return false;
    }
    return true;
}

/// More than two rings hold, by ends in one thread.
template <class Producer, class Consumer>
void expect_items_to_pass(Producer& producer, Consumer& consumer) {
    constexpr std::uint64_t count = 100;
    const Deadline deadline = in_time();
    Numbered item;
    std::uint64_t sent = 0;
    for (std::uint64_t taken = 0; taken != count;) {
        ASSERT_FALSE(deadline.expired()) << sent << " sent, " << taken << " taken";
        if (sent != count && producer.try_enqueue(Kind<Numbered>::make(sent)) == Status::ok) {
            ++sent;
        } else {
            (void)producer.flush(Deadline::now());
        }
        if (consumer.try_dequeue(item) == Status::ok) {
            ASSERT_EQ(Kind<Numbered>::number_of(item), taken++);
        }
    }
}

// --- every point

struct PointOfConnectors {
    ring::Design design;
    bool own_transfer_queue = false;
};
std::vector<PointOfConnectors> points_of_connectors() {
    std::vector<PointOfConnectors> points;
    for (const ring::Design design : every_design()) points.push_back({design});
    for (const ring::Design design : every_pushed_transfer()) points.push_back({design, true});
    for (const ring::Design design : {ring::design_2, ring::Design{.data = ring::DataFlow::pull,
                                                      .transfer = ring::TransferNotification::pull,
                                                      .space = ring::SpaceNotification::push}}) {
        points.push_back({with(design, ring::Batching::none, ring::Mover::active)});
    }
    return points;
}
class EveryDesignsConnector : public testing::TestWithParam<PointOfConnectors> {
  protected:
    void SetUp() override {
        if (!can_run(GetParam().design)) {
            GTEST_SKIP() << "this device does not promise the order of bytes";
        }
    }
    [[nodiscard]] static Options options() {
        Options chosen = small_ring();
        chosen.ring.own_transfer_queue = GetParam().own_transfer_queue;
        return chosen;
    }
};
INSTANTIATE_TEST_SUITE_P(Points, EveryDesignsConnector, testing::ValuesIn(points_of_connectors()),
                         [](const auto& point) {
                             std::string name = name_of_point(point.param.design);
                             if (point.param.design.mover == ring::Mover::active) name += "_moved";
                             if (point.param.own_transfer_queue) name += "_own_queue";
                             return name;
                         });

TEST_P(EveryDesignsConnector, GivesProducersInTheThreadThatAccepts) {
    const ring::Design design = GetParam().design;
    Listener listener = Listener::listen(unique_address(), options());
    Connector<AnyProducer<Numbered>> connector{design, listener.address(), options()};
    std::optional<AnyConsumer<Numbered>> near;
    std::optional<AnyProducer<Numbered>> far;
    ASSERT_TRUE(connects_in_loop(
        connector, listener, [&] { return AnyConsumer<Numbered>::try_accept(design, listener); },
        near, far));
    ASSERT_NO_FATAL_FAILURE(expect_items_to_pass(*far, *near));
}

TEST_P(EveryDesignsConnector, GivesConsumersInTheThreadThatAccepts) {
    const ring::Design design = GetParam().design;
    Listener listener = Listener::listen(unique_address(), options());
    Connector<AnyConsumer<Numbered>> connector{design, listener.address(), options()};
    std::optional<AnyProducer<Numbered>> near;
    std::optional<AnyConsumer<Numbered>> far;
    ASSERT_TRUE(connects_in_loop(
        connector, listener, [&] { return AnyProducer<Numbered>::try_accept(design, listener); },
        near, far));
    ASSERT_NO_FATAL_FAILURE(expect_items_to_pass(*near, *far));
}

// --- a connector and its time

using NumberedOut = Producer<Numbered>;
using NumberedIn = Consumer<Numbered>;

TEST(FlowConnector, TriesUntilSomebodyListens) {
    const connect::Address free = connect::Address::parse(unique_address());
    Connector<NumberedOut> connector{free, small_ring()};
    for (int i = 0; i < 4; ++i) {
        EXPECT_FALSE(connector.try_connect().has_value());
        ASSERT_TRUE(becomes_readable(connector.descriptor(), 40s));
    }
    Listener listener = Listener::listen(free, small_ring());
    std::optional<NumberedIn> near;
    std::optional<NumberedOut> far;
    ASSERT_TRUE(connects_in_loop(
        connector, listener, [&] { return NumberedIn::try_accept(listener); }, near, far));
    ASSERT_NO_FATAL_FAILURE(expect_items_to_pass(*far, *near));
}

TEST(FlowConnector, WaitsAsConnectDoes) {
    Listener listener = Listener::listen(unique_address(), small_ring());
    auto accepting =
        std::async(std::launch::async, [&] { return NumberedIn::accept(listener, in_time()); });
    Connector<NumberedOut> connector{listener.address(), small_ring()};
    (void)connector.descriptor();
    NumberedOut far = connector.wait(in_time());
    NumberedIn near = accepting.get();
    ASSERT_NO_FATAL_FAILURE(expect_items_to_pass(far, near));
    EXPECT_EQ(far.close(in_time()), Status::ok);
}

TEST(FlowConnector, RefusesAtOnceWhatNoPeerCouldMakeWork) {
    const connect::Address free = connect::Address::parse(unique_address());
    Options asking = small_ring();
    asking.filter = [](const Numbered&) { return true; };
    EXPECT_THROW((Connector<NumberedOut>{free, asking}), base::Error);
    Options empty = small_ring();
    empty.ring.capacity = 0;
    EXPECT_THROW((Connector<NumberedOut>{free, empty}), base::Error);
}

// --- many

TEST(FlowConnector, ManyComeInSideBySideInOneLoop) {
    constexpr std::size_t count = 24;
    auto fan_in =
        FanIn<Numbered>::listen(unique_address(), {.queue = small_ring(), .expected = count});
    connect::Hub hub;
    std::vector<Connector<NumberedOut>> connectors;
    std::vector<std::optional<NumberedOut>> far(count);
    std::vector<connect::Hub::Id> members(count);
    std::size_t connected = 0;
    for (std::size_t i = 0; i != count; ++i) {
        connectors.emplace_back(fan_in.address(), small_ring());
    }
    for (std::size_t i = 0; i != count; ++i) {
        members[i] = hub.add(connectors[i].descriptor(), [&, i] {
            far[i] = connectors[i].try_connect();
            if (!far[i].has_value()) return;
            hub.remove(members[i]);
            ++connected;
        });
    }
    const Deadline deadline = in_time();
    Numbered item;
    while (connected != count && !deadline.expired()) {
        (void)hub.turn();
        EXPECT_EQ(fan_in.try_dequeue(item), Status::empty);
    }
    ASSERT_EQ(connected, count);
    for (std::size_t i = 0; i != count; ++i) {
        ASSERT_EQ(far[i]->try_enqueue(Kind<Numbered>::make(i)), Status::ok) << "it is ready";
        ASSERT_EQ(far[i]->flush(in_time()), Status::ok);
    }
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i != count; ++i) {
        ASSERT_EQ(fan_in.dequeue(item, in_time()), Status::ok);
        sum += Kind<Numbered>::number_of(item);
    }
    EXPECT_EQ(sum, count * (count - 1) / 2);
    for (auto& one : far) EXPECT_EQ(one->close(in_time()), Status::ok);
    EXPECT_EQ(fan_in.dequeue(item, in_time()), Status::closed);
}

/// Two producers by connectors, and their consumers, in one thread.
struct TwoByConnectors {
    TwoByConnectors() {
        for (int i = 0; i != 2; ++i) {
            Listener listener = Listener::listen(unique_address(), small_ring());
            Connector<NumberedOut> connector{listener.address(), small_ring()};
            std::optional<NumberedIn> near;
            std::optional<NumberedOut> far;
            EXPECT_TRUE(connects_in_loop(
                connector, listener, [&] { return NumberedIn::try_accept(listener); }, near, far));
            consumers.push_back(std::move(near.value()));
            producers.push_back(std::move(far.value()));
        }
    }
    void expect(std::size_t consumer, std::uint64_t number) {
        Numbered item;
        ASSERT_EQ(consumers[consumer].dequeue(item, in_time()), Status::ok);
        EXPECT_EQ(Kind<Numbered>::number_of(item), number);
    }
    std::vector<NumberedIn> consumers;
    std::vector<NumberedOut> producers;
};

TEST(FlowConnector, GivesAFanOutItsQueues) {
    TwoByConnectors two;
    auto out = FanOut<Numbered>::of(std::move(two.producers), {.routing = Routing::in_turn});
    for (std::uint64_t i = 0; i != 4; ++i) {
        ASSERT_EQ(out.enqueue(Kind<Numbered>::make(i), in_time()), Status::ok);
    }
    ASSERT_EQ(out.flush(in_time()), Status::ok);
    for (std::uint64_t i = 0; i != 4; ++i) ASSERT_NO_FATAL_FAILURE(two.expect(i % 2, i));
    EXPECT_THROW((void)FanOut<Numbered>::of({}), base::Error);
}

TEST(FlowConnector, GivesAReplicatorItsQueues) {
    TwoByConnectors two;
    auto all = Replicator<Numbered>::of(std::move(two.producers), {.quorum = 2});
    EXPECT_EQ(all.consumers(), 2U);
    ASSERT_EQ(all.enqueue(Kind<Numbered>::make(5), in_time()), Status::ok);
    ASSERT_EQ(all.flush(in_time()), Status::ok);
    for (std::size_t i = 0; i != 2; ++i) ASSERT_NO_FATAL_FAILURE(two.expect(i, 5));
}

TEST(FlowConnector, ThatGivesUpAnywhereLeavesTheListenerToOthers) {
    Listener listener = Listener::listen(unique_address(), small_ring());
    std::vector<NumberedIn> left;
    const auto accept = [&] {
        if (auto near = NumberedIn::try_accept(listener)) left.push_back(std::move(*near));
    };
    for (int steps = 0; steps < 8; ++steps) {
        Connector<NumberedOut> given_up{listener.address(), small_ring()};
        for (int i = 0; i < steps; ++i) {
            if (given_up.try_connect().has_value()) break;
            accept();
        }
    }
    Connector<NumberedOut> connector{listener.address(), small_ring()};
    std::optional<NumberedOut> far;
    for (const Deadline deadline = in_time(); !far && !deadline.expired();) {
        accept();
        far = connector.try_connect();
    }
    ASSERT_TRUE(far.has_value());
    ASSERT_EQ(far->try_enqueue(Kind<Numbered>::make(7)), Status::ok);
    // Whoever had come far enough before it gave up was accepted, and is lost.
    Numbered item;
    std::size_t taken = 0;
    for (const Deadline deadline = in_time(); taken == 0 && !deadline.expired();) {
        (void)far->flush(Deadline::now());
        accept();
        for (NumberedIn& near : left) {
            if (near.try_dequeue(item) == Status::ok) ++taken;
        }
    }
    EXPECT_EQ(taken, 1U);
    EXPECT_EQ(Kind<Numbered>::number_of(item), 7U);
}

// --- peers that are none

/// Somebody who listens and goes as far as a test wants.
class Stranger {
  public:
    Stranger()
        : listener_{
              connect::Listener::listen(connect::Address::parse(unique_address()), options())} {}
    [[nodiscard]] const connect::Address& address() const { return listener_.address(); }

    /// Has a link with the connector, which has proposed its queue then.
    [[nodiscard]] connect::Link& meet(Connector<NumberedOut>& connector) {
        const Deadline deadline = in_time();
        while (!link_ && !deadline.expired()) {
            EXPECT_FALSE(connector.try_connect().has_value());
            link_ = listener_.try_accept_speaking();
        }
        return link_.value();
    }
    /// Says what a consumer does.
    void agree() {
        (void)ring::agree(*link_, ring::Role::consumer, ring::design_2, {.capacity = 8},
                          detail::item_facts<Numbered>(), in_time());
    }
    void say(std::size_t bytes) { link_->say(std::vector<std::byte>(bytes, std::byte{0xa5})); }
    void leave() { link_.reset(); }

  private:
    static connect::LinkOptions options() {
        connect::LinkOptions made = ring::link_options("flow queue");
        made.endpoint = with_endpoint({}).endpoint;
        return made;
    }
    connect::Listener listener_;
    std::optional<connect::Link> link_;
};

/// Until a call throws.
base::Error error_of(Connector<NumberedOut>& connector) {
    try {
        for (const Deadline deadline = in_time(); !deadline.expired();) {
            if (connector.try_connect().has_value()) break;
            (void)becomes_readable(connector.descriptor(), 40s);
        }
    } catch (const base::Error& error) {
        return error;
    }
    return {ErrorCode::system, "connect", "", "no error came", ""};
}

TEST(FlowConnector, SaysHowFarItCame) {
    const connect::Address free = connect::Address::parse(unique_address());
    std::string text;
    Connector<NumberedOut> early{free, small_ring()};
    EXPECT_FALSE(early.try_connect().has_value());
    EXPECT_EQ(code_of_failure(early, Deadline::now(), text), ErrorCode::refused);
    EXPECT_THAT(text, testing::HasSubstr("nothing listens there"));
    {
        Stranger silent;
        Connector<NumberedOut> linked{silent.address(), small_ring()};
        (void)silent.meet(linked);
        EXPECT_EQ(code_of_failure(linked, Deadline::after(20ms), text), ErrorCode::timed_out);
        EXPECT_THAT(text, testing::HasSubstr("did not answer in time"));
    }
    Stranger half;
    Connector<NumberedOut> agreed{half.address(), small_ring()};
    (void)half.meet(agreed);
    half.agree();
    EXPECT_EQ(code_of_failure(agreed, Deadline::after(20ms), text), ErrorCode::timed_out);
    EXPECT_THAT(text, testing::HasSubstr("did not say where its memory is in time"));
    base::Cancellation cancelled;
    cancelled.request();
    EXPECT_EQ(code_of_failure(agreed, in_time().cancelled_by(cancelled), text),
              ErrorCode::cancelled);
}

TEST(FlowConnector, WaitsForAPeerThatNeverAnswersAndBlocksNobody) {
    Stranger silent;
    Connector<NumberedOut> waiting{silent.address(), small_ring()};
    (void)silent.meet(waiting);
    ASSERT_TRUE(millrace::test::goes_quiet(waiting.descriptor(), [&] {
        EXPECT_FALSE(waiting.try_connect().has_value());
    })) << "there is nothing to do";
    silent.agree();
    ASSERT_TRUE(becomes_readable(waiting.descriptor(), 40s));
    ASSERT_TRUE(millrace::test::goes_quiet(
        waiting.descriptor(), [&] { EXPECT_FALSE(waiting.try_connect().has_value()); }));
    // Meanwhile others of the same thread come in.
    Listener listener = Listener::listen(unique_address(), small_ring());
    Connector<NumberedOut> other{listener.address(), small_ring()};
    std::optional<NumberedIn> near;
    std::optional<NumberedOut> far;
    ASSERT_TRUE(connects_in_loop(
        other, listener, [&] { return NumberedIn::try_accept(listener); }, near, far));
    ASSERT_NO_FATAL_FAILURE(expect_items_to_pass(*far, *near));
    EXPECT_FALSE(waiting.try_connect().has_value());
}

TEST(FlowConnector, IsToldOfAPeerThatDiesInTheMiddle) {
    {
        Stranger before;
        Connector<NumberedOut> connector{before.address(), small_ring()};
        (void)before.meet(connector);
        before.leave();
        const base::Error error = error_of(connector);
        EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
    }
    Stranger after;
    Connector<NumberedOut> connector{after.address(), small_ring()};
    (void)after.meet(connector);
    after.agree();
    EXPECT_FALSE(connector.try_connect().has_value());
    after.leave();
    const base::Error error = error_of(connector);
    EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
}

TEST(FlowConnector, IsToldOfAPeerThatLeavesInGoodOrder) {
    Stranger polite;
    Connector<NumberedOut> connector{polite.address(), small_ring()};
    polite.meet(connector).say_goodbye();
    EXPECT_EQ(error_of(connector).code(), ErrorCode::closed);
}

TEST(FlowConnector, TakesNoFactsThatCannotBe) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{241}, std::size_t{4096}}) {
        Stranger lying;
        Connector<NumberedOut> connector{lying.address(), small_ring()};
        (void)lying.meet(connector);
        lying.say(bytes);
        const base::Error error = error_of(connector);
        EXPECT_EQ(error.code(), ErrorCode::protocol) << error.what();
        EXPECT_THAT(error.what(), testing::HasSubstr(std::to_string(bytes) + " bytes"));
    }
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{65}}) {
        Stranger lying;
        Connector<NumberedOut> connector{lying.address(), small_ring()};
        (void)lying.meet(connector);
        lying.agree();
        lying.say(bytes);
        const base::Error error = error_of(connector);
        EXPECT_EQ(error.code(), ErrorCode::protocol) << error.what();
        EXPECT_THAT(error.what(), testing::HasSubstr(std::to_string(bytes) + " bytes"));
    }
}

TEST(FlowConnector, IsToldWhyItIsRefused) {
    const auto refusal_by = [](auto try_accept) {
        Listener listener = Listener::listen(unique_address(), small_ring());
        Connector<NumberedOut> connector{listener.address(), small_ring()};
        try {
            for (const Deadline deadline = in_time(); !deadline.expired();) {
                (void)try_accept(listener);
                if (connector.try_connect().has_value()) break;
            }
        } catch (const base::Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::refused) << error.what();
            return std::string{error.what()};
        }
        return std::string{"it connected"};
    };
    EXPECT_THAT(
        refusal_by([](Listener& at) { return Consumer<Numbered, ring::design_1>::try_accept(at); }),
        testing::HasSubstr("the other end runs push1/watermark/pull"));
    EXPECT_THAT(refusal_by([](Listener& at) { return Consumer<std::uint64_t>::try_accept(at); }),
                testing::HasSubstr("the other end has items"));
    EXPECT_THAT(refusal_by([](Listener& at) { return NumberedOut::try_accept(at); }),
                testing::HasSubstr("both ends are a producer"));
}

// --- filters

struct Even {
    bool operator()(const Numbered& item) const { return item.number % 2 == 0; }
};
using Sifted = Filtered<Numbered, Even>;

TEST(FlowConnector, AgreesOnAFilterFromEitherSide) {
    Options asking = small_ring();
    asking.filter = Even{};
    const auto expect_even = [](auto& producer, auto& consumer) {
        for (std::uint64_t i = 0; i != 6; ++i) {
            ASSERT_EQ(producer.try_enqueue(Kind<Numbered>::make(i)), Status::ok);
        }
        ASSERT_EQ(producer.flush(in_time()), Status::ok);
        Numbered item;
        for (std::uint64_t i = 0; i != 6; i += 2) {
            ASSERT_EQ(consumer.dequeue(item, in_time()), Status::ok);
            EXPECT_EQ(Kind<Numbered>::number_of(item), i);
        }
        EXPECT_EQ(consumer.try_dequeue(item), Status::empty);
    };
    {
        Listener listener = Listener::listen(unique_address(), asking);
        Connector<Producer<Sifted>> connector{listener.address(), small_ring()};
        std::optional<NumberedIn> near;
        std::optional<Producer<Sifted>> far;
        ASSERT_TRUE(connects_in_loop(
            connector, listener, [&] { return NumberedIn::try_accept(listener); }, near, far));
        ASSERT_NO_FATAL_FAILURE(expect_even(*far, *near));
    }
    Listener listener = Listener::listen(unique_address(), small_ring());
    Connector<NumberedIn> connector{listener.address(), asking};
    std::optional<Producer<Sifted>> near;
    std::optional<NumberedIn> far;
    ASSERT_TRUE(connects_in_loop(
        connector, listener, [&] { return Producer<Sifted>::try_accept(listener); }, near, far));
    ASSERT_NO_FATAL_FAILURE(expect_even(*near, *far));
}

// --- coroutines

base::Task<> connect_one(Connector<NumberedOut>& connector, std::optional<NumberedOut>& far) {
    auto connected = co_await connect(connector, in_time());
    EXPECT_EQ(connected.status, Status::ok);
    far = std::move(connected.end);
}
base::Task<> accept_one(Listener& listener, std::optional<NumberedIn>& near) {
    auto accepted = co_await accept<NumberedIn>(listener, in_time());
    EXPECT_EQ(accepted.status, Status::ok);
    near = std::move(accepted.end);
}

TEST(FlowConnector, IsAwaitedByACoroutine) {
    connect::Hub hub;
    Listener listener = Listener::listen(unique_address(), small_ring());
    Connector<NumberedOut> connector{listener.address(), small_ring()};
    std::optional<NumberedIn> near;
    std::optional<NumberedOut> far;
    base::spawn(hub, connect_one(connector, far));
    base::spawn(hub, accept_one(listener, near));
    const Deadline deadline = in_time();
    while ((!near || !far) && !deadline.expired()) {
        if (hub.turn() == 0) (void)hub.rest(deadline);
    }
    ASSERT_TRUE(near && far);
    ASSERT_NO_FATAL_FAILURE(expect_items_to_pass(*far, *near));
}

TEST(FlowConnector, WhoseTimeIsOverInATaskIsCancelledByItsEnd) {
    connect::Hub hub;
    Stranger silent;
    const auto connecting = [&]() -> base::Task<> {
        Connector<NumberedOut> connector{silent.address(), small_ring()};
        const auto connected = co_await connect(connector, Deadline::after(3ms));
        EXPECT_EQ(connected.status, Status::timed_out);
        EXPECT_FALSE(connected.end.has_value());
        hub.stop();
    };
    base::spawn(hub, connecting());
    EXPECT_EQ(hub.run(in_time()), Status::closed);
}

}  // namespace
}  // namespace millrace::flow
