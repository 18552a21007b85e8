// A server that a dispatcher is connected to, and that keeps to its connection and to nothing above
// it: what was asked there ends once, and what goes to other servers is answered as ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "channel/setup.hpp"
#include "message/lane_inside.hpp"
#include "message/serving.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/message/detail/entries.hpp"
#include "millrace/message/dispatcher.hpp"
#include "support/extent.hpp"
#include "support/one_processor.hpp"
#include "support/served.hpp"

namespace millrace::message {
namespace {

using base::Deadline;
using base::Status;
using namespace std::chrono_literals;

/// Accepts one client, says `first`, and does a deed behind each request.
class LyingServer {
  public:
    using Deed = std::function<void(RingLane&, std::uint64_t id)>;

    LyingServer(Welcome first, Deed deed)
        : listener_{connect::Listener::listen(unique_address(), link())},
          first_{first},
          deed_{std::move(deed)},
          thread_{[this] { serve(); }} {}
    LyingServer(const LyingServer&) = delete;
    LyingServer& operator=(const LyingServer&) = delete;
    ~LyingServer() {
        ends_ = true;
        thread_.join();
    }
    [[nodiscard]] const connect::Address& address() const { return listener_.address(); }

    static void say(RingLane& line, std::span<const std::byte> message) {
        std::span<std::byte> place;
        if (line.claim(message.size(), place) != Status::ok) return;
        std::copy(message.begin(), message.end(), place.begin());
        (void)line.commit(message.size());
    }
    /// In pieces, if it is larger than the ring.
    static void say_all(RingLane& line, const SessionHeader& header, std::size_t size) {
        (void)line.send(pack(header), Bytes(size, std::byte{0x5a}));
    }
    static void say(RingLane& line, const SessionHeader& header,
                    std::span<const std::byte> payload = {}) {
        (void)line.try_send(pack(header), payload);
    }

  private:
    static ChannelOptions options() {
        ChannelOptions options;
        options.endpoint = connect::Endpoint::shared();
        return options;
    }
    static connect::LinkOptions link() { return link_options(options(), server_service); }

    void serve() {
        std::unique_ptr<RingLane> line;
        while (!ends_ && line == nullptr) {
            auto met = connect::try_accept_set_up(listener_, [](connect::Link accepted) {
                return std::make_unique<RingLane>(
                    set_up_accepted(std::move(accepted), options(), patience()),
                    std::size_t{1} << 20);
            });
            if (met.has_value()) line = std::move(*met);
            std::this_thread::yield();
        }
        while (!ends_) {
            std::span<const std::byte> message;
            const Status status = line->look(message);
            if (status == Status::ok) {
                SessionHeader header;
                std::span<const std::byte> payload;
                ASSERT_TRUE(parse(message, header, payload));
                line->pass();
                if (header.kind == SessionKind::hello) {
                    say(*line, {.kind = SessionKind::welcome}, pack(first_));
                } else if (header.kind == SessionKind::request ||
                           header.kind == SessionKind::request_batch) {
                    deed_(*line, header.id);
                }
            } else if (status != Status::empty) {
                return;  // its client has had enough
            }
            (void)line->flush();
            std::this_thread::yield();
        }
    }

    connect::Listener listener_;
    Welcome first_;
    Deed deed_;
    std::atomic<bool> ends_{false};
    std::thread thread_;
};

Welcome honest() {
    return {.session = SessionName::random(),
            .window = 8,
            .max_request = 1 << 16,
            .reads_large = true,
            .batches = true};
}

Bytes entry(const EntryHead& head) {
    const std::uint64_t word = head.word();
    Bytes bytes(sizeof word);
    std::memcpy(bytes.data(), &word, sizeof word);
    return bytes;
}

const LyingServer::Deed deeds[] = {
    [](RingLane& line, std::uint64_t) { LyingServer::say(line, Bytes{}); },
    [](RingLane& line, std::uint64_t) { LyingServer::say(line, Bytes(15, std::byte{0xff})); },
    [](RingLane& line, std::uint64_t) { LyingServer::say(line, Bytes(16, std::byte{0})); },
    [](RingLane& line, std::uint64_t) { LyingServer::say(line, Bytes(400, std::byte{0xff})); },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id + 1000, .kind = SessionKind::answer});
    },
    // Several answers in one message: none, less than one, longer than the message, of another
    // number, of an outcome that never travels.
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_batch});
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_batch}, Bytes(7));
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_batch},
                         entry({.length = 0xffff}));
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_batch},
                         entry({.number = 1000}));
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_batch},
                         entry({.what = 0xff}));
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::request_batch}, entry({}));
    },
    [](RingLane& line, std::uint64_t id) {  // it has read more than was sent to it
        const std::uint64_t read =
            RingLaneInside::core_of(line).reader.position() + (std::uint64_t{1} << 20);
        LyingServer::say(line,
                         {.id = id,
                          .kind = SessionKind::answer_batch,
                          .limit_us = Progress::units(read) | Channel::Core::says_position},
                         entry({}));
    },
    [](RingLane& line, std::uint64_t) {
        LyingServer::say(line, {.id = 0, .kind = SessionKind::answer});
    },
    [](RingLane& line, std::uint64_t) {
        LyingServer::say(line, {.id = largest_request_id, .kind = SessionKind::answer});
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::request});
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::cancel});
    },
    [](RingLane& line, std::uint64_t) {
        LyingServer::say(line, {.kind = SessionKind::welcome}, pack(honest()));
    },
    [](RingLane& line, std::uint64_t) {
        LyingServer::say(line, {.kind = SessionKind::refused}, bytes_of("go away"));
    },
    [](RingLane& line, std::uint64_t id) {  // the same number twice
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer});
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer});
    },
    [](RingLane& line, std::uint64_t id) {  // an outcome that does not travel
        LyingServer::say(
            line, {.id = id, .kind = SessionKind::answer, .outcome = static_cast<Outcome>(200)});
    },
    // Answers that are to be READ.
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_by_read});
    },
    [](RingLane& line, std::uint64_t id) {  // from nowhere
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_by_read},
                         pack(Announcement{.address = 4096, .rkey = 77, .length = 100'000}));
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id + 1000, .kind = SessionKind::answer_by_read},
                         pack(Announcement{.length = 0}));
    },
    [](RingLane& line, std::uint64_t id) {  // longer than the client takes
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_by_read},
                         pack(Announcement{.length = std::uint64_t{1} << 40}));
    },
    [](RingLane& line, std::uint64_t id) {
        LyingServer::say(line, {.id = id, .kind = SessionKind::request_by_read},
                         pack(Announcement{.length = 0}));
    },
    [](RingLane& line, std::uint64_t id) {  // and the number once more
        LyingServer::say(line, {.id = id, .kind = SessionKind::answer_by_read},
                         pack(Announcement{.length = 0}));
        LyingServer::say(line, {.id = id + 7, .kind = SessionKind::answer});
    },
};

TEST(DispatchersOfLiars, EndWhatWasAskedThereAndServeTheOthers) {
    Running running;
    Dispatcher dispatcher =
        Dispatcher::connect(std::array{running.server.address()}, {}, patience());
    std::jthread thread{[&] {
        dispatcher.adopt();
        (void)dispatcher.run(Deadline::never());
    }};
    // Somebody else's calls, all the time.
    std::atomic<bool> done{false};
    std::atomic<std::uint64_t> served{0};
    std::jthread other{[&] {
        Port port = dispatcher.port();
        Bytes answer;
        for (std::uint64_t i = 0; !done; ++i) {
            const Bytes request = content(1, i, i % 300);
            ASSERT_EQ(port.call(request, answer, patience()), Outcome::ok);
            ASSERT_EQ(answer, request);
            ++served;
        }
    }};
    for (const LyingServer::Deed& deed : deeds) {
        LyingServer liar{honest(), deed};
        const std::uint32_t number = dispatcher.join(liar.address(), {}, patience());
        std::array<std::thread, 3> askers;
        for (std::thread& asker : askers) {
            asker = std::thread{[&] {
                Port port = dispatcher.port();
                port.to(number);
                std::map<std::uint64_t, int> ends;
                for (int i = 0; i < 5; ++i) {
                    std::uint64_t id = 0;
                    if (port.submit(bytes_of("what is it?"), id) == Status::ok) ends[id] = 0;
                }
                while (port.outstanding() != 0) {
                    ASSERT_EQ(
                        port.wait([&](const Answer& answer) { ++ends[answer.id]; }, patience()),
                        Status::ok);
                }
                for (const auto& [id, count] : ends) EXPECT_EQ(count, 1) << id;
            }};
        }
        for (std::thread& asker : askers) asker.join();
        const Deadline deadline = patience();
        while (dispatcher.state_of(number) == Status::ok && !deadline.expired()) {
            std::this_thread::yield();
        }
        EXPECT_NE(dispatcher.state_of(number), Status::ok) << &deed - deeds;
        const std::uint64_t before = served;
        while (served == before && !deadline.expired()) std::this_thread::yield();
        EXPECT_NE(served, before) << "the other one is served no more";
    }
    done = true;
    other.join();
    EXPECT_EQ(dispatcher.state_of(0), Status::ok);
    dispatcher.stop();
}

// Who looks takes the pieces out of the ring, and nothing is left there that tells of the lie.
// Where that is a port, which ends nothing, the dispatcher's thread has to hear of it.
TEST(DispatchersOfLiars, EndWhatAPortFoundToBeALie) {
    constexpr std::size_t larger_than_the_ring = 20'000;
    const LyingServer::Deed in_pieces[] = {
        [](RingLane& line, std::uint64_t id) {
            LyingServer::say_all(line, {.id = id + 1000, .kind = SessionKind::answer},
                                 larger_than_the_ring);
        },
        [](RingLane& line, std::uint64_t id) {  // its last piece is too much
            LyingServer::say_all(line, {.id = id, .kind = SessionKind::answer},
                                 larger_than_the_ring);
        },
    };
    ClientOptions client;
    client.max_answer_bytes = larger_than_the_ring - 1;
    const test::OnOneProcessor here;  // the threads below inherit it
    DispatcherOptions options;
    options.wait = test::yielding;
    Dispatcher dispatcher = Dispatcher::connect({}, options, patience());
    const test::ServingThread<Dispatcher> thread{
        dispatcher, [](Dispatcher& its) { return its.run(Deadline::never()); }};
    Port port = dispatcher.port({.wait = test::yielding});
    for (std::uint64_t round = 0; round < test::repetitions(16); ++round) {
        for (const LyingServer::Deed& deed : in_pieces) {
            LyingServer liar{honest(), deed};
            port.to(dispatcher.join(liar.address(), client, patience()));
            Bytes answer;
            ASSERT_EQ(port.call(bytes_of("what is it?"), answer, patience()), Outcome::peer_lost)
                << round << ", " << &deed - in_pieces;
        }
    }
}

// A client that takes all that lies there by a loop of its program.
TEST(ClientsOfLiars, EndThoughTheyTakeSeveralAnswersAtATime) {
    for (const LyingServer::Deed& deed : deeds) {
        LyingServer liar{honest(), deed};
        Client client = Client::connect(liar.address(), {}, patience());
        std::uint64_t first = 0;
        const auto fill = [](std::size_t, std::span<std::byte> room) {
            std::ranges::fill(room, std::byte{1});
        };
        ASSERT_EQ(client.submit_several(5, 40, fill, first).count, 5U);
        std::map<std::uint64_t, int> answered;
        BatchResult result;
        const Deadline deadline = patience();
        do {
            result = client.poll_all([&](const Answer& answer) { ++answered[answer.id]; });
            // Those behind the lie that it would answer honestly.
            std::uint64_t id = 0;
            if (result.status == Status::empty) (void)client.submit(bytes_of("go on"), id);
            std::this_thread::yield();
        } while (result.status == Status::empty && !deadline.expired());
        EXPECT_EQ(result.status, Status::peer_lost) << &deed - deeds;
        for (const auto& [id, count] : answered) EXPECT_EQ(count, 1) << id;
    }
}

TEST(ClientsOfLiars, DoNotJoinWhoResumesWhatIsNotKept) {
    Welcome lie = honest();
    lie.resumed = true;
    LyingServer liar{lie, deeds[0]};
    EXPECT_THROW((void)Client::connect(liar.address(), {}, patience()), base::Error);
}

TEST(DispatchersOfLiars, DoNotJoinWhoSaysNoWelcome) {
    Running running;
    Dispatcher dispatcher =
        Dispatcher::connect(std::array{running.server.address()}, {}, patience());
    const Welcome welcomes[] = {
        {.session = SessionName{}, .window = 8},
        {.session = SessionName::random(), .window = 0},
        {.session = SessionName::random(), .window = largest_window + 1},
        {.session = SessionName::random(), .window = 8, .polling = static_cast<Polling>(9)},
    };
    for (const Welcome& welcome : welcomes) {
        LyingServer liar{welcome, [](RingLane&, std::uint64_t) {}};
        EXPECT_THROW((void)dispatcher.join(liar.address(), {}, patience()), base::Error);
    }
    EXPECT_EQ(dispatcher.servers(), 1U);
    EXPECT_EQ(dispatcher.state_of(0), Status::ok);
}

}  // namespace
}  // namespace millrace::message
