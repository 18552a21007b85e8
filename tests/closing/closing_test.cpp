// One close contract for every abstraction (docs/closing.md): whoever sends closes, and this is
// what close() answers, what the other end reads, and what is left after a close that timed out.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/flow/aggregate.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/latest.hpp"
#include "millrace/flow/log.hpp"
#include "millrace/flow/log_reader.hpp"
#include "millrace/flow/priority.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/flow/shared.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/stream/socket.hpp"

namespace millrace {
namespace {

using base::Deadline;
using base::Status;
using ring::Carrier;
using namespace std::chrono_literals;

/// Generous: it only ends tests that have failed.
Deadline soon() { return Deadline::after(40s); }

std::string fresh_address() {
    static std::atomic<int> count{0};
    return "unix:@millrace-closing-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

/// Two ends in this process; the items are numbers. Nothing but close() waits.
struct Pair {
    std::function<Status(std::uint64_t)> send;
    std::function<Status(std::uint64_t&)> receive;
    std::function<Status(const Deadline&)> close;
    std::function<void()> drop;
    std::function<void()> close_other;
    std::function<void()> drop_other;
    /// The other way, where there is one.
    std::function<Status(std::uint64_t)> answer{};
    std::function<Status(std::uint64_t&)> hear{};
    /// What is sent lies in the other end's memory at once: there is nothing to deliver.
    bool delivers_at_once = false;
    /// The other end reads the last one only.
    bool keeps_last = false;
    /// Nothing is delivered before the other end fetches it.
    bool is_fetched = false;
    /// Where the other end has left before it had everything.
    Status if_left = Status::closed;
};

using Made = std::pair<const char*, Pair (*)(Carrier)>;

// ---- flow

flow::Options small(Carrier carrier) {
    flow::Options options;
    options.ring.capacity = 8;
    options.ring.carrier = carrier;
    return options;
}

/// Both ends, made at the same time as each waits for the other.
template <class Out, class In>
struct Ends {
    template <class MakeOut, class MakeIn>
    Ends(MakeOut&& make_out, MakeIn&& make_in) {
        auto making = std::async(std::launch::async, make_out);
        in.emplace(make_in());
        out.emplace(making.get());
    }
    std::optional<Out> out;
    std::optional<In> in;
};

template <class Out, class In>
Pair pair_of(std::shared_ptr<Ends<Out, In>> ends) {
    return {.send = [ends](std::uint64_t number) { return ends->out->try_enqueue(number); },
            .receive = [ends](std::uint64_t& number) { return ends->in->try_dequeue(number); },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { ends->in->close(); },
            .drop_other = [ends] { ends->in.reset(); }};
}
bool stores(const std::string& explained) {
    return explained.find("carrier: store") != std::string::npos;
}

template <class Out, class In, class Connect>
Pair to_consumer(Carrier carrier, Connect&& connect) {
    auto listener = flow::Listener::listen(fresh_address(), small(carrier));
    auto ends = std::make_shared<Ends<Out, In>>([&] { return connect(listener.address()); },
                                                [&] { return In::accept(listener, soon()); });
    const bool at_once = stores(ends->in->explain());
    Pair pair = pair_of(std::move(ends));
    pair.delivers_at_once = at_once;
    return pair;
}

using Number = std::uint64_t;

template <ring::Design D>
Pair queue(Carrier carrier) {
    Pair pair = to_consumer<flow::Producer<Number, D>, flow::Consumer<Number, D>>(
        carrier, [&](const connect::Address& address) {
            return flow::Producer<Number, D>::connect(address, small(carrier), soon());
        });
    pair.is_fetched = D.data == ring::DataFlow::pull;
    return pair;
}

Pair shared(Carrier carrier) {
    using Out = flow::Shared<flow::Producer<Number>>;
    return to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
        return Out{flow::Producer<Number>::connect(address, small(carrier), soon())};
    });
}

struct NeverOne {
    bool operator()(Number&, const Number&) const { return false; }
};
Pair combining(Carrier carrier) {
    using Out = flow::CombiningProducer<Number, NeverOne>;
    Pair pair =
        to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
            return Out{flow::Producer<Number>::connect(address, small(carrier), soon())};
        });
    pair.delivers_at_once = false;  // one item waits in the producer
    return pair;
}

Pair fan_out(Carrier carrier) {
    using Out = flow::FanOut<Number>;
    return to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
        const std::array<connect::Address, 1> addresses{address};
        return Out::connect(addresses, {.queue = small(carrier)}, soon());
    });
}

Pair replicator(Carrier carrier) {
    using Out = flow::Replicator<Number>;
    Pair pair =
        to_consumer<Out, flow::Consumer<Number>>(carrier, [&](const connect::Address& address) {
            const std::array<connect::Address, 1> addresses{address};
            return Out::connect(addresses, {.queue = small(carrier)}, soon());
        });
    pair.if_left = Status::peer_lost;  // fewer than its quorum remain
    return pair;
}

using In = flow::FanIn<Number>;

Pair fan_in(Carrier carrier) {
    using Out = flow::Producer<Number>;
    auto fan = In::listen(fresh_address(), {.queue = small(carrier), .expected = 1});
    const connect::Address address = fan.address();
    std::promise<Out> connected;
    std::thread other{[&] { connected.set_value(Out::connect(address, small(carrier), soon())); }};
    auto made = connected.get_future();
    Number none = 0;
    while (made.wait_for(0s) != std::future_status::ready) (void)fan.try_dequeue(none);
    other.join();
    auto ends =
        std::make_shared<Ends<Out, In>>([&] { return made.get(); }, [&] { return std::move(fan); });
    const bool at_once = stores(ends->out->explain());
    // Its flow is closed when all have left; how each has, it says by on_change.
    auto how = std::make_shared<Status>(Status::ok);
    ends->in->on_change([how](const flow::FanInSource&, Status status) { *how = status; });
    Pair pair = pair_of(ends);
    pair.receive = [ends, how](std::uint64_t& number) {
        const Status status = ends->in->try_dequeue(number);
        return status == Status::closed ? *how : status;
    };
    pair.delivers_at_once = at_once;
    return pair;
}

Pair latest(Carrier carrier) {
    using Out = flow::LatestWriter<Number>;
    using Reader = flow::LatestReader<Number>;
    const std::string address = fresh_address();
    auto ends = std::make_shared<Ends<Out, Reader>>(
        [&] { return Out::connect(address, {.carrier = carrier}, soon()); },
        [&] { return Reader::listen(address, {.cells = 1, .carrier = carrier}, soon()); });
    return {.send = [ends](std::uint64_t number) { return ends->out->put(0, number); },
            .receive = [ends](std::uint64_t& number) { return ends->in->try_get(number); },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { ends->in->close(); },
            .drop_other = [ends] { ends->in.reset(); },
            .delivers_at_once = true,
            .keeps_last = true};
}

Pair log(Carrier carrier) {
    using Out = flow::Log<Number>;
    using Reader = flow::LogReader<Number>;
    flow::Options queue = small(carrier);
    queue.ring.capacity = 1024;  // bytes
    // Full where it keeps 512, as nobody acknowledges any.
    auto out = Out::listen(
        fresh_address(),
        {.queue = queue, .retention = {.bytes = 4096, .until_acknowledged = {"nobody"}}});
    const connect::Address address = out.address();
    auto connecting = std::async(
        std::launch::async, [&] { return Reader::connect(address, {.queue = queue}, soon()); });
    while (connecting.wait_for(0s) != std::future_status::ready) (void)out.look_around();
    auto ends = std::make_shared<Ends<Out, Reader>>([&] { return std::move(out); },
                                                    [&] { return connecting.get(); });
    return {.send = [ends](std::uint64_t number) { return ends->out->try_append(number); },
            .receive = [ends](std::uint64_t& number) { return ends->in->try_read(number); },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { EXPECT_EQ(ends->in->close(soon()), Status::ok); },
            .drop_other = [ends] { ends->in.reset(); }};
}

// ---- both ways

template <class End>
Status try_send(std::optional<End>& end, std::uint64_t number) {
    return end->try_send(std::as_bytes(std::span<const std::uint64_t>{&number, 1}));
}
template <class End>
Status try_receive(std::optional<End>& end, std::uint64_t& number) {
    std::size_t size = 0;
    return end->try_receive(std::as_writable_bytes(std::span<std::uint64_t>{&number, 1}), size);
}
// Long enough to fill a ring by a few.
using Long = std::array<std::uint64_t, 1024>;
template <>
Status try_send(std::optional<stream::Socket>& end, std::uint64_t number) {
    static std::deque<Long> sent;  // a send refers to its memory until it has completed
    sent.emplace_back().front() = number;
    return end->send(std::as_bytes(std::span{sent.back()}), number);
}
template <>
Status try_receive(std::optional<stream::Socket>& end, std::uint64_t& number) {
    std::size_t size = 0;
    Long words{};
    const Status status = end->try_read_some(std::as_writable_bytes(std::span{words}), size);
    number = words.front();
    return status;
}

template <class End>
Pair both_ways(std::shared_ptr<Ends<End, End>> ends) {
    return {.send = [ends](std::uint64_t number) { return try_send(ends->out, number); },
            .receive = [ends](std::uint64_t& number) { return try_receive(ends->in, number); },
            .close = [ends](const Deadline& deadline) { return ends->out->close(deadline); },
            .drop = [ends] { ends->out.reset(); },
            .close_other = [ends] { EXPECT_EQ(ends->in->close(soon()), Status::ok); },
            .drop_other = [ends] { ends->in.reset(); },
            .answer = [ends](std::uint64_t number) { return try_send(ends->in, number); },
            .hear = [ends](std::uint64_t& number) { return try_receive(ends->out, number); }};
}

Pair channel(Carrier carrier) {
    message::ChannelOptions options;
    options.ring_bytes = 4096;
    options.carrier = carrier;
    auto listener = message::Listener::listen(connect::Address::parse(fresh_address()), options);
    return both_ways(std::make_shared<Ends<message::Channel, message::Channel>>(
        [&] { return message::connect(listener.address(), options, soon()); },
        [&] { return listener.accept(soon()); }));
}

template <stream::Mode mode>
Pair byte_stream(Carrier carrier) {
    stream::SocketOptions options;
    options.mode = mode;
    options.type = stream::Type::seqpacket;
    options.ring_bytes = 64 << 10;
    options.sends = 16;
    options.carrier = carrier;
    auto listener = stream::Listener::listen(connect::Address::parse(fresh_address()), options);
    return both_ways(std::make_shared<Ends<stream::Socket, stream::Socket>>(
        [&] { return stream::connect(listener.address(), options, soon()); },
        [&] { return listener.accept(soon()); }));
}

constexpr ring::Design pulled{.data = ring::DataFlow::pull,
                              .transfer = ring::TransferNotification::push,
                              .space = ring::SpaceNotification::push};
constexpr ring::Design sent{.data = ring::DataFlow::push2,
                            .transfer = ring::TransferNotification::event,
                            .space = ring::SpaceNotification::push};

const std::array<Made, 14> abstractions{{{"queue_design_1", queue<ring::design_1>},
                                         {"queue_design_2", queue<ring::design_2>},
                                         {"queue_pulled", queue<pulled>},
                                         {"queue_sent", queue<sent>},
                                         {"shared", shared},
                                         {"combining", combining},
                                         {"fan_out", fan_out},
                                         {"replicator", replicator},
                                         {"fan_in", fan_in},
                                         {"latest", latest},
                                         {"log", log},
                                         {"channel", channel},
                                         {"stream_dynamic", byte_stream<stream::Mode::dynamic>},
                                         {"stream_indirect", byte_stream<stream::Mode::indirect>}}};

// ---- the contract

class Closing : public testing::TestWithParam<std::tuple<Made, Carrier>> {
  protected:
    Pair pair = std::get<0>(GetParam()).second(std::get<1>(GetParam()));
    std::uint64_t received = 0;

    /// As many as go in without a reader.
    std::uint64_t fill() {
        if (pair.keeps_last) return send(3);
        std::uint64_t count = 0;
        Status status = Status::ok;
        for (; (status = pair.send(count)) == Status::ok; ++count) {
        }
        EXPECT_EQ(status, Status::full);
        return count;
    }
    std::uint64_t send(std::uint64_t count) {
        for (std::uint64_t i = 0; i != count; ++i) EXPECT_EQ(pair.send(i), Status::ok);
        return count;
    }
    /// What the other end answers once it has found nothing, or the end. `meanwhile()` within.
    template <class Meanwhile>
    Status receive_until(std::uint64_t count, Meanwhile&& meanwhile) {
        const Deadline deadline = soon();
        while (received != count && !deadline.expired()) {
            std::uint64_t number = 0;
            const Status status = pair.receive(number);
            if (status == Status::ok) {
                if (pair.keeps_last) received = number;
                EXPECT_EQ(number, received);
                ++received;
            } else if (status != Status::empty) {
                return status;
            }
            meanwhile();
        }
        return Status::ok;
    }
    Status receive(std::uint64_t count) {
        return receive_until(count, [] {});
    }
    /// How it ends for the other end, which takes what is there still.
    Status end_of_other() { return receive(~std::uint64_t{0}); }
};

TEST_P(Closing, OkMeansThatTheOtherEndReadsClosedAfterTheLastItem) {
    const std::uint64_t count = send(5);
    if (pair.is_fetched) {
        const auto close = [&] { (void)pair.close(Deadline::now()); };
        ASSERT_EQ(receive_until(count, close), Status::ok);
    }
    EXPECT_EQ(pair.close(soon()), Status::ok);
    EXPECT_EQ(pair.send(count), Status::closed);
    EXPECT_EQ(end_of_other(), Status::closed);
    EXPECT_EQ(received, count);
    EXPECT_EQ(end_of_other(), Status::closed) << "once more";
    EXPECT_EQ(pair.close(soon()), Status::ok) << "once more";
}

TEST_P(Closing, TimedOutMeansThatNothingWasGivenUp) {
    const std::uint64_t count = fill();
    if (pair.delivers_at_once && !pair.is_fetched) {
        EXPECT_EQ(pair.close(Deadline::now()), Status::ok);
    } else {
        EXPECT_EQ(pair.close(Deadline::now()), Status::timed_out);
        EXPECT_EQ(pair.send(count), Status::closed) << "it takes nothing new";
        EXPECT_EQ(pair.close(Deadline::after(1ms)), Status::timed_out) << "once more";
        if (pair.answer) {
            ASSERT_EQ(pair.answer(7), Status::ok);
            std::uint64_t heard = 0;
            const Deadline deadline = soon();
            while (pair.hear(heard) == Status::empty && !deadline.expired()) {
            }
            EXPECT_EQ(heard, 7U) << "it reads still";
        }
    }
    Status closed = Status::timed_out;
    const Status status =
        receive_until(~std::uint64_t{0}, [&] { closed = pair.close(Deadline::now()); });
    EXPECT_EQ(status, Status::closed);
    EXPECT_EQ(received, count);
    EXPECT_EQ(pair.close(soon()), Status::ok);
}

TEST_P(Closing, AnEndThatIsDestroyedAfterACloseThatTimedOutIsLost) {
    const std::uint64_t count = fill();
    if (pair.delivers_at_once && !pair.is_fetched) GTEST_SKIP() << "there is nothing to wait for";
    ASSERT_EQ(pair.close(Deadline::now()), Status::timed_out);
    pair.drop();
    EXPECT_EQ(end_of_other(), Status::peer_lost);
    EXPECT_LE(received, count);
}

TEST_P(Closing, AnEndThatIsDestroyedWithoutACloseIsLost) {
    const std::uint64_t count = send(5);
    EXPECT_EQ(receive(count), Status::ok);
    pair.drop();
    EXPECT_EQ(end_of_other(), Status::peer_lost);
    EXPECT_EQ(received, count);
}

TEST_P(Closing, PeerLostMeansThatNobodyTakesWhatIsLeft) {
    (void)send(5);
    pair.drop_other();
    EXPECT_EQ(pair.close(soon()), Status::peer_lost);
    EXPECT_EQ(pair.close(soon()), Status::peer_lost) << "once more";
}

TEST_P(Closing, OkIsAlsoTheAnswerWhereTheOtherEndHasClosedAndHadEverything) {
    const std::uint64_t count = send(5);
    ASSERT_EQ(receive(count), Status::ok);
    pair.close_other();
    EXPECT_EQ(pair.close(soon()), Status::ok);
}

TEST_P(Closing, ClosedMeansThatTheOtherEndHasClosedBeforeItHadEverything) {
    (void)fill();
    pair.close_other();
    EXPECT_EQ(pair.close(soon()), pair.if_left);
    EXPECT_EQ(pair.close(soon()), pair.if_left) << "once more";
}

std::string name_of(const testing::TestParamInfo<Closing::ParamType>& of) {
    const auto& [made, carrier] = of.param;
    return std::string{made.first} + (carrier == Carrier::post ? "_posted" : "");
}
INSTANTIATE_TEST_SUITE_P(Of, Closing,
                         testing::Combine(testing::ValuesIn(abstractions),
                                          testing::Values(Carrier::automatic, Carrier::post)),
                         name_of);

}  // namespace
}  // namespace millrace
