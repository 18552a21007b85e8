// Answers as streams: every part once and in order, whoever is faster; ends of all kinds.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/message/server.hpp"
#include "millrace/rpc/table.hpp"
#include "rpc/serving.hpp"
#include "stream_state.hpp"
#include "support/child_process.hpp"
#include "support/extent.hpp"

namespace millrace::rpc {

/// A part that is written, and that no reader understands.
struct OddPart {};
template <>
struct Codec<OddPart> {
    static constexpr std::string_view name = "odd";
    static std::vector<std::byte> encode(const OddPart&) { return std::vector<std::byte>(8); }
    static bool decode(std::span<const std::byte>, OddPart&) { return false; }
};

namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

struct Range {
    std::uint64_t from = 0;
    std::uint64_t count = 0;
};
struct Count {
    static constexpr std::string_view name = "count";
    using Request = Range;
    using Part = Pair;  ///< which range, which number
};

struct CountOdd {
    static constexpr std::string_view name = "count odd";
    using Request = Range;
    using Part = OddPart;
};

/// Writes the numbers of a range in a thread of its own.
class Counting {
  public:
    Counting() = default;
    Counting(const Counting&) = delete;
    Counting& operator=(const Counting&) = delete;
    ~Counting() {
        for (std::thread& one : threads_) one.join();
    }
    void operator()(const Range& range, Sink<Pair> sink) {
        threads_.emplace_back([range, sink = std::move(sink)]() mutable {
            for (std::uint64_t i = 0; i < range.count; ++i) {
                if (sink.write({range.from, i}, patience()) != Status::ok) return;
            }
            EXPECT_EQ(sink.finish(), Status::ok);
            EXPECT_EQ(sink.write({}), Status::closed);
        });
    }

  private:
    std::vector<std::thread> threads_;
};

class Streams : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, Streams, all_ways(), name_of_way);

TEST_P(Streams, BringEveryPartOnceAndInOrder) {
    Counting counting;
    Running running{server_options_of(GetParam()), [&](Server& server) {
                        server.handle<Count>(std::ref(counting), {.max_parts = 4});
                        server.handle<Add>(sum_of);
                    }};
    std::optional<Dispatching> dispatching;
    Client client = running.connect<Count, Add>(client_options_of(GetParam(), dispatching));
    for (const std::uint64_t count : {0UL, 1UL, 8UL, test::repetitions(500)}) {
        auto one = client.open<Count>({1, count}, patience());
        auto other = client.open<Count>({2, count}, patience(), 3);
        for (std::uint64_t i = 0; i < count; ++i) {
            Pair part;
            ASSERT_EQ(one.next(part, patience()), Status::ok) << name_of(one.error().code);
            EXPECT_EQ(part.one, 1U);
            EXPECT_EQ(part.other, i);
            ASSERT_EQ(other.next(part, patience()), Status::ok) << name_of(other.error().code);
            EXPECT_EQ(part.one, 2U);
            EXPECT_EQ(part.other, i);
            if (i % 50 == 0) {
                EXPECT_TRUE(client.call<Add>({i, i}, patience()).ok());
            }
        }
        Pair part;
        EXPECT_EQ(one.next(part, patience()), Status::closed);
        EXPECT_EQ(one.next(part, patience()), Status::closed);
        EXPECT_EQ(other.next(part, patience()), Status::closed);
        EXPECT_EQ(one.error().code, Code::ok);
    }
    running.stop();
    EXPECT_EQ(running.server.procedures().at(0).answered, 8U);
    EXPECT_EQ(running.server.procedures().at(0).pending, 0U);
}

/// A sink that the test writes to.
struct Held {
    Held()
        : running{{}, [this](Server& server) {
                      server.handle<Count>(
                          [this](const Range&, Sink<Pair> given) {
                              const std::lock_guard guard{mutex};
                              sink.emplace(std::move(given));
                          },
                          {.max_parts = 2});
                      server.handle<Add>(sum_of);
                  }} {}
    Sink<Pair> take() {
        while (true) {
            const std::lock_guard guard{mutex};
            if (sink.has_value()) {
                Sink<Pair> taken = std::move(*sink);
                sink.reset();
                return taken;
            }
        }
    }
    std::mutex mutex;
    std::optional<Sink<Pair>> sink;
    Running running;
};

/// Until a sink's answer is `expected`.
bool comes_to(Sink<Pair>& sink, Status expected) {
    for (const auto deadline = patience(); !deadline.expired(); std::this_thread::yield()) {
        if (sink.write({}) == expected) return true;
    }
    return false;
}

TEST(StreamEnds, ByAnErrorAreToldBehindTheParts) {
    Held held;
    Client client = held.running.connect<Count>();
    auto reader = client.open<Count>({}, patience());
    {
        Sink<Pair> sink = held.take();
        EXPECT_EQ(sink.write({1, 2}), Status::ok);
        EXPECT_EQ(sink.fail({.number = 5, .text = "no more"}), Status::ok);
    }
    Pair part;
    ASSERT_EQ(reader.next(part, patience()), Status::ok);
    EXPECT_EQ(part.other, 2U);
    ASSERT_EQ(reader.next(part, patience()), Status::peer_lost);
    EXPECT_EQ(reader.error().code, Code::failed);
    EXPECT_EQ(reader.error().number, 5U);
    EXPECT_EQ(reader.error().text, "no more");

    auto next = client.open<Count>({}, patience());
    { const Sink<Pair> sink = held.take(); }
    ASSERT_EQ(next.next(part, patience()), Status::peer_lost);
    EXPECT_EQ(next.error().text, "the stream was let go of");
}

TEST(StreamEnds, ByTheReaderReachTheWriter) {
    Held held;
    Client client = held.running.connect<Count, Add>();
    std::optional<StreamReader<Count>> reader{client.open<Count>({}, patience(), 2)};
    Sink<Pair> sink = held.take();
    EXPECT_TRUE(sink.is_wanted());
    ASSERT_TRUE(comes_to(sink, Status::full)) << "a reader who does not read holds the writer up";
    Pair part;
    ASSERT_EQ(reader->next(part, patience()), Status::ok);
    reader.reset();
    ASSERT_TRUE(comes_to(sink, Status::closed));
    EXPECT_FALSE(sink.is_wanted());
    EXPECT_EQ(client.outstanding(), 0U);
    EXPECT_TRUE(client.call<Add>({1, 1}, patience()).ok());
}

/// What was asked for of a server that is gone, and then that the rest is lost with it, by an
/// error.
void brings_two_parts_and_tells_of_loss(StreamReader<Count>& reader) {
    Pair part;
    for (std::uint64_t i = 0; i < 2; ++i) {
        ASSERT_EQ(reader.next(part, patience()), Status::ok);
        EXPECT_EQ(part.other, i);
    }
    EXPECT_EQ(reader.next(part, patience()), Status::peer_lost)
        << "the second server knows nothing of it";
    EXPECT_EQ(reader.error().code, Code::session_lost);
    EXPECT_NE(reader.error().text.find("behind 2 parts"), std::string::npos) << reader.error().text;
    EXPECT_EQ(reader.next(part, patience()), Status::peer_lost) << "and stays so";
}

TEST(StreamEnds, WithTheirSessionAreErrorsAndNoEnds) {
    const connect::Address address = unique_address();
    std::mutex mutex;
    std::optional<Sink<Pair>> sink;
    const auto keeps_sinks = [&](Server& server) {
        server.handle<Count>([&](const Range&, Sink<Pair> given) {
            const std::lock_guard guard{mutex};
            sink.emplace(std::move(given));
            for (std::uint64_t i = 0; i < 2; ++i) EXPECT_EQ(sink->write({1, i}), Status::ok);
        });
    };
    auto first = std::make_unique<Running>(ServerOptions{}, keeps_sinks, address);
    Client client = first->connect<Count>();
    auto reader = client.open<Count>({}, patience(), 2);
    // What was asked for is here, and nobody has read it.
    int parts = 0;
    ASSERT_TRUE(comes_true([&] {
        parts += client.poll() == Status::ok ? 1 : 0;
        return parts == 2;
    }));
    first.reset();
    ASSERT_TRUE(comes_true([&] { return client.poll() == Status::peer_lost; }));
    const Running second{{}, keeps_sinks, address};
    ASSERT_EQ(client.reconnect(patience()), Status::ok);
    brings_two_parts_and_tells_of_loss(reader);
}

class StreamsBy : public OfEachSession {};
INSTANTIATE_TEST_SUITE_P(Sessions, StreamsBy, every_session,
                         [](const auto& each) { return std::string{each.param}; });

TEST_P(StreamsBy, AClientThatConnectsAnewThoughNothingHasEndedGoOn) {
    Counting counting;
    Running running{{}, [&](Server& server) { server.handle<Count>(std::ref(counting)); }};
    Client client = running.connect<Count>(options());
    auto reader = client.open<Count>({7, 5}, patience(), 1);
    Pair part;
    for (std::uint64_t i = 0; i < 5; ++i) {
        ASSERT_EQ(reader.next(part, patience()), Status::ok) << reader.error().text;
        EXPECT_EQ(part.other, i);
        ASSERT_EQ(client.reconnect(patience()), Status::ok);
    }
    EXPECT_EQ(reader.next(part, patience()), Status::closed);
}

/// A session that resumes asks another server for the next part, and nothing else tells the reader
/// that the first one has taken the others with it.
TEST(StreamEnds, WithALostSessionThatResumesAreErrorsAndNoEnds) {
    const connect::Address address = unique_address();
    std::vector<Sink<Pair>> sinks;
    const auto keeps_sinks = [&](Server& server) {
        server.handle<Count>([&](const Range&, Sink<Pair> sink) {
            for (std::uint64_t i = 0; i < 2; ++i) EXPECT_EQ(sink.write({1, i}), Status::ok);
            sinks.push_back(std::move(sink));
        });
    };
    auto first = std::make_unique<Running>(ServerOptions{}, keeps_sinks, address);
    ClientOptions options;
    options.messages.resumes = true;
    Client client = first->connect<Count>(options);
    auto reader = client.open<Count>({}, patience(), 2);
    while (client.outstanding() != 0) ASSERT_EQ(client.wait(patience()), Status::ok);
    first.reset();
    const Running second{{}, keeps_sinks, address};
    ASSERT_EQ(client.reconnect(patience()), Status::ok);
    brings_two_parts_and_tells_of_loss(reader);
}

/// A server of messages that answers a stream by these words, a pair behind each.
class Scripted {
  public:
    explicit Scripted(std::vector<std::uint64_t> words)
        : words_{std::move(words)},
          server_{
              message::Server::listen(unique_address(), {.tuning = {.service = server_service}})},
          thread_{server_, [this](message::Server& its) {
                      return its.serve([this](message::Request& request) { answer(request); },
                                       Deadline::never());
                  }} {}
    [[nodiscard]] const connect::Address& address() const { return server_.address(); }

  private:
    void answer(message::Request& request) {
        const unsigned number = request.procedure() & ~unsigned{head_bit};
        if (number == table_number) {
            const std::array<ProcedureReport, 1> count{
                {{.number = first_number, .signature = detail::signature_of<Count>()}}};
            (void)request.answer(write_table(count, false));
        } else if (next_ < words_.size()) {
            const std::array<std::uint64_t, 3> part{words_[next_++], 1, 2};
            (void)request.answer(std::as_bytes(std::span{part}));
        } else {
            (void)request.answer({});  // it is not wanted any more, or asked for ahead
        }
    }

    std::vector<std::uint64_t> words_;
    std::size_t next_ = 0;
    message::Server server_;
    test::ServingThread<message::Server> thread_;
};

TEST(StreamReaders, FindOutThatPartsWereLost) {
    using detail::PartKind, detail::word_of;
    struct Case {
        std::vector<std::uint64_t> words;
        int parts;
        Code code;  ///< ok: it is complete
        std::string_view text;
    };
    const auto part = [](std::uint64_t number) { return word_of(PartKind::part, number); };
    const auto end = [](std::uint64_t parts) { return word_of(PartKind::end, parts); };
    const std::vector<Case> cases{
        {{end(0)}, 0, Code::ok, ""},
        {{part(0), part(1), end(2)}, 2, Code::ok, ""},
        {{part(0), end(2)}, 1, Code::session_lost, "1 were read, and 2 were written"},
        {{end(1)}, 0, Code::session_lost, "0 were read, and 1 were written"},
        {{part(0), part(2), end(3)}, 1, Code::session_lost, "the next one to come is number 2"},
        {{part(1), end(2)}, 0, Code::session_lost, "the next one to come is number 1"},
        {{part(0), part(0), end(1)}, 1, Code::session_lost, "the next one to come is number 0"},
        {{part(0), word_of(PartKind::no_stream, 0)},
         1,
         Code::session_lost,
         "does not know it any more"},
        {{part(0), word_of(PartKind{9}, 1)}, 1, Code::bad_answer, ""},
        {{part(0)}, 1, Code::bad_answer, ""},  // behind it comes what has no word at all
    };
    for (std::size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE(i);
        Scripted server{cases[i].words};
        Client client = Client::connect<Count>(server.address(), {}, patience());
        auto reader = client.open<Count>({}, patience(), 1);
        Pair read;
        for (int k = 0; k < cases[i].parts; ++k) {
            ASSERT_EQ(reader.next(read, patience()), Status::ok);
            EXPECT_EQ(read.other, 2U);
        }
        const bool is_complete = cases[i].code == Code::ok;
        EXPECT_EQ(reader.next(read, patience()), is_complete ? Status::closed : Status::peer_lost);
        EXPECT_EQ(reader.error().code, cases[i].code) << name_of(reader.error().code);
        EXPECT_NE(reader.error().text.find(cases[i].text), std::string::npos)
            << reader.error().text;
    }
}

TEST(StreamEnds, ByDeadlineLeaveTheStreamOrEndIt) {
    Held held;
    Client client = held.running.connect<Count>();
    auto reader = client.open<Count>({}, patience());
    Sink<Pair> sink = held.take();
    Pair part;
    EXPECT_EQ(reader.next(part, Deadline::after(2ms)), Status::timed_out);
    EXPECT_EQ(sink.write({3, 4}), Status::ok);
    ASSERT_EQ(reader.next(part, patience()), Status::ok) << "it goes on";
    EXPECT_EQ(part.one, 3U);
    EXPECT_EQ(sink.finish(), Status::ok);
    EXPECT_EQ(reader.next(part, patience()), Status::closed);

    auto late = client.open<Count>({}, Deadline::now());
    EXPECT_EQ(late.next(part, patience()), Status::peer_lost);
    EXPECT_EQ(late.error().code, Code::late);
}

TEST(StreamReaders, WaitForAPlaceThatOtherCallsHaveTaken) {
    Held held;
    ClientOptions options;
    options.messages.window = 4;
    Client client = held.running.connect<Count, Add>(options);
    auto reader = client.open<Count>({}, patience(), 1);
    Sink<Pair> sink = held.take();
    EXPECT_EQ(sink.write({1, 1}), Status::ok);
    EXPECT_EQ(sink.write({1, 2}), Status::ok);
    while (client.outstanding() != 0) ASSERT_EQ(client.wait(patience()), Status::ok);
    int answered = 0;
    for (std::uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(
            client.submit<Add>(
                {i, i}, [&](const Result<Sum>& sum) { answered += sum.ok() ? 1 : 0; }, patience()),
            Status::ok);
    }
    Pair part;
    ASSERT_EQ(reader.next(part, patience()), Status::ok);
    EXPECT_EQ(part.other, 1U);
    EXPECT_EQ(answered, 0) << "the part was there: no place is free yet to ask for the next one";
    ASSERT_EQ(reader.next(part, patience()), Status::ok) << name_of(reader.error().code);
    EXPECT_EQ(part.other, 2U);
    EXPECT_GT(answered, 0);
    while (answered != 4) ASSERT_EQ(client.wait(patience()), Status::ok);
    EXPECT_EQ(sink.finish(), Status::ok);
    EXPECT_EQ(reader.next(part, patience()), Status::closed);
}

/// A stream of P of which one part has come, and whose reader has no place to say anything: its
/// client's window is full of calls that are put aside.
template <class P>
class WithoutAPlace {
  public:
    using Part = typename P::Part;
    [[nodiscard]] StreamReader<P> open() {
        auto reader = client.open<P>({}, patience(), 1);
        while (client.outstanding() != 0 && client.wait(patience()) == Status::ok) {
        }
        for (std::uint64_t i = 0; i < window; ++i) {
            EXPECT_EQ(client.submit<Add>(
                          {i, i}, [](const Result<Sum>&) {}, patience()),
                      Status::ok);
        }
        return reader;
    }
    /// Each of them, once all have come.
    void answer() {
        ASSERT_TRUE(comes_true([&] {
            const std::lock_guard guard{mutex_};
            return aside_.size() == window;
        }));
        for (Reply<Sum>& reply : aside_) EXPECT_EQ(reply.answer({}), Status::ok);
        for (std::uint64_t i = 0; i < window; ++i) {
            ASSERT_EQ(client.wait(patience()), Status::ok);
        }
        EXPECT_EQ(client.wait(patience()), Status::empty);
    }
    /// Once its part has come.
    [[nodiscard]] Sink<Part>& sink() {
        const std::lock_guard guard{mutex_};
        return *sink_;
    }

  private:
    static constexpr std::uint64_t window = 2;
    [[nodiscard]] static ClientOptions options() {
        ClientOptions options;
        options.messages.window = window;
        return options;
    }

    std::mutex mutex_;
    std::optional<Sink<Part>> sink_;  ///< guarded by mutex_
    std::vector<Reply<Sum>> aside_;   ///< likewise
    Running running_{{}, [this](Server& server) {
                         server.handle<P>([this](const Range&, Sink<Part> given) {
                             const std::lock_guard guard{mutex_};
                             (void)given.write({});
                             sink_.emplace(std::move(given));
                         });
                         server.handle<Add>([this](const Pair&, Call<Add>& call) {
                             const std::lock_guard guard{mutex_};
                             aside_.push_back(call.defer());
                         });
                     }};

  public:
    Client client = running_.connect<P, Add>(options());
};

TEST(StreamEnds, ByAPartThatTheReaderCannotReadReachTheWriterOnceThereIsAPlaceToSaySo) {
    WithoutAPlace<CountOdd> ends;
    {
        auto reader = ends.open();
        OddPart part;
        ASSERT_EQ(reader.next(part, patience()), Status::peer_lost);
        EXPECT_EQ(reader.error().code, Code::bad_answer);
        EXPECT_TRUE(ends.sink().is_wanted()) << "the window was full of calls: nothing was said";
    }
    ends.answer();
    EXPECT_TRUE(comes_true([&] { return !ends.sink().is_wanted(); }));
}

TEST(StreamReaders, WaitForAPlaceUntilTheirDeadline) {
    WithoutAPlace<Count> ends;
    auto reader = ends.open();
    Pair part;
    ASSERT_EQ(reader.next(part, patience()), Status::ok);
    EXPECT_EQ(reader.next(part, Deadline::after(2ms)), Status::timed_out);
    base::Cancellation cancellation;
    cancellation.request();
    EXPECT_EQ(reader.next(part, patience().cancelled_by(cancellation)), Status::cancelled);
    EXPECT_EQ(reader.error().code, Code::ok) << "the stream goes on";
}

MILLRACE_CHILD(rpc_reader) {
    Client client = Client::connect<Count>(connect::Address::parse(arguments[0]), {}, patience());
    auto reader = client.open<Count>({}, patience(), 2);
    Pair part;
    if (reader.next(part, patience()) != Status::ok) return 1;
    test::say("read");
    (void)test::hear();
    return 0;
}

struct Block {
    std::uint64_t number = 0;
    char rest[8184] = {};
};
struct Blocks {
    static constexpr std::string_view name = "blocks";
    using Request = Range;
    using Part = Block;
};

TEST(StreamParts, OfAllReadersHaveABoundTogetherWithinWhichEachGoesOn) {
    struct Writing {
        Sink<Block> sink;
        std::uint64_t next = 0;
        std::uint64_t count = 0;
        /// True: there is no more to write.
        bool go_on() {
            Block block;
            for (; next != count; ++next) {
                block.number = next;
                const Status status = sink.write(block);
                if (status == Status::full) return false;
                if (status != Status::ok) return true;
            }
            (void)sink.finish();
            return true;
        }
    };
    std::mutex mutex;
    std::vector<Writing> all;
    ServerOptions options;
    options.messages.max_request_bytes = std::size_t{64} << 10;
    options.messages.max_held_bytes = std::size_t{512} << 10;
    Running running{options, [&](Server& server) {
                        server.handle<Blocks>([&](const Range& range, Sink<Block> sink) {
                            const std::lock_guard guard{mutex};
                            all.push_back({std::move(sink), 0, range.count});
                            (void)all.back().go_on();
                        });
                    }};
    Client client = running.connect<Blocks>();
    constexpr std::uint64_t count = 40;
    std::vector<StreamReader<Blocks>> readers;
    std::size_t open = 0;
    for (bool is_open = true; is_open && open < 100;) {
        readers.push_back(client.open<Blocks>({0, count}, patience(), 1));
        Block first;
        is_open = readers.back().next(first, patience()) == Status::ok;
        if (is_open) {
            ++open;
        } else {
            EXPECT_EQ(readers.back().error().code, Code::overloaded);
            readers.pop_back();
        }
    }
    EXPECT_GE(open, 2U);
    EXPECT_LT(open, 100U);
    {
        const std::lock_guard guard{mutex};
        std::uint64_t written = 0;
        for (const Writing& one : all) written += one.next;
        // One that was asked for, and one that any stream may have.
        EXPECT_LE(written * sizeof(Block),
                  options.messages.max_held_bytes + 2 * open * (sizeof(Block) + 64));
    }
    std::atomic<bool> is_over{false};
    std::thread writer{[&] {
        while (!is_over) {
            const std::lock_guard guard{mutex};
            std::erase_if(all, [](Writing& one) { return one.go_on(); });
        }
    }};
    for (StreamReader<Blocks>& reader : readers) {
        Block block;
        for (std::uint64_t i = 1; i < count; ++i) {
            ASSERT_EQ(reader.next(block, patience()), Status::ok);
            ASSERT_EQ(block.number, i);
        }
        EXPECT_EQ(reader.next(block, patience()), Status::closed);
    }
    is_over = true;
    writer.join();
    // There is room for others again.
    auto last = client.open<Blocks>({0, 0}, patience());
    Block none;
    EXPECT_EQ(last.next(none, patience()), Status::closed);
}

TEST(StreamEnds, ByDeathOfTheReaderReachTheWriter) {
    Held held;
    test::ChildProcess child =
        test::ChildProcess::start("rpc_reader", {held.running.server.address().to_string()});
    Sink<Pair> sink = held.take();
    EXPECT_EQ(sink.write({}), Status::ok);
    ASSERT_EQ(child.read_line(), "read");
    child.kill_and_wait();
    ASSERT_TRUE(comes_to(sink, Status::closed));
}

}  // namespace
}  // namespace millrace::rpc
