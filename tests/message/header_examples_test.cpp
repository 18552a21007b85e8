// The examples that stand at the head of the public headers of message/, each as it stands there:
// they compile, and do what they say. What they leave out stands between them.
// tests/architecture/documents_test.cpp finds each of their lines here, below the header's name.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
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

#include "message/patience.hpp"
#include "millrace/base/cancellation.hpp"
#include "millrace/base/coroutine.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/coroutine.hpp"
#include "millrace/message/detail/copy.hpp"
#include "millrace/message/detail/entries.hpp"
#include "millrace/message/detail/filled.hpp"
#include "millrace/message/detail/frame.hpp"
#include "millrace/message/detail/frame_reader.hpp"
#include "millrace/message/detail/frame_writer.hpp"
#include "millrace/message/detail/mailbox_scan.hpp"
#include "millrace/message/dispatcher.hpp"
#include "millrace/message/halves.hpp"
#include "millrace/message/server.hpp"
#include "millrace/message/server_group.hpp"
#include "millrace/message/session.hpp"
#include "millrace/message/transfer.hpp"
#include "millrace/message/tuning.hpp"

// Where nobody else listens, whatever the examples say.
namespace millrace::examples {
namespace {

millrace::connect::Address own_address() {
    return millrace::connect::Address::parse("unix:@millrace-header-examples-" +
                                             std::to_string(getpid()));
}
namespace connect {
struct Address {
    static millrace::connect::Address parse(const char*) { return own_address(); }
};
}  // namespace connect

using Bytes = std::vector<std::byte>;
using base::Status;
using message::patience;

const auto address = own_address();
const Bytes request(100, std::byte{7});

// copy.hpp
TEST(HeaderExamples, Copy) {
    const Bytes& payload = request;
    Bytes place(payload.size());
    message::copy_any(place.data(), payload.data(), payload.size());
    EXPECT_EQ(place, payload);
}

// entries.hpp
TEST(HeaderExamples, LayAnEntry) {
    alignas(8) std::array<std::byte, 64> ring{};
    std::byte* at = ring.data();
    const std::uint16_t procedure = 3;
    message::lay_entry_head(at, {.length = 5, .what = procedure});
    const auto head = message::EntryHead::of(message::load_frame_word(at));
    const std::span<const std::byte> payload{at + message::entry_head_bytes, head.length};
    at += message::entry_bytes(head.length);
    EXPECT_EQ(head.what, procedure);
    EXPECT_EQ(payload.size(), 5U);
    EXPECT_EQ(at, ring.data() + 16);
}

// filled.hpp
TEST(HeaderExamples, SayWhatWasFilled) {
    Bytes room(20);
    const auto fill = [](std::span<std::byte>) { return std::size_t{12}; };
    const std::size_t used = message::detail::filled(room, fill);
    EXPECT_EQ(used, 12U);
}

// frame.hpp
TEST(HeaderExamples, SayWhatAFrameTakes) {
    const Bytes payload(65);
    std::uint64_t room = message::frame_bytes(payload.size());
    EXPECT_EQ(room, 128U);
}

// frame_writer.hpp
TEST(HeaderExamples, WriteAFrameThatIsRead) {
    alignas(64) std::array<std::byte, 256> ring{};
    const std::uint64_t own_secret = 5;
    const std::uint64_t consumed = 0;
    const std::span<const std::byte> piece = request;
    const auto flags = message::frame_whole;
    message::FrameWriter writer{ring, own_secret};
    if (writer.free_bytes(consumed) >= writer.needed(piece.size())) {
        message::Transmission bytes = writer.send(piece, flags);
        EXPECT_EQ(bytes.bytes, message::wire_bytes(piece.size()));
    }
    // frame_reader.hpp
    const std::uint64_t secret_of_the_sender = own_secret;
    int found = 0;
    message::FrameReader reader{ring, secret_of_the_sender};
    if (reader.arriving()) ++found;
    if (std::uint64_t header; reader.front(header)) {
        EXPECT_EQ(message::header_length(header), piece.size());
        ++found;
    }
    EXPECT_EQ(found, 2);
}

// mailbox_scan.hpp
TEST(HeaderExamples, Scan) {
    std::array<std::byte, 300> memory{};
    memory[3] = memory[4] = memory[299] = std::byte{1};
    const std::byte* const boxes = memory.data();
    const std::size_t count = memory.size();
    std::vector<std::size_t> found;
    const message::Scan scan = message::scan_by(message::best_scan_kernel());
    for (std::size_t i = 0; (i = scan(boxes, i, count)) != count; ++i) found.push_back(i);
    EXPECT_EQ(found, (std::vector<std::size_t>{3, 4, 299}));
}

// tuning.hpp
TEST(HeaderExamples, Tune) {
    struct {
        message::Tuning tuning{};
    } options;
    options.tuning.carrier = ring::Carrier::post;
    EXPECT_EQ(options.tuning.carrier, ring::Carrier::post);
}

// session.hpp
TEST(HeaderExamples, PackAndParse) {
    const message::SessionHead laid = message::pack(message::SessionHeader{.id = 7});
    const auto message = std::as_bytes(std::span{laid});
    message::SessionHeader header;
    std::span<const std::byte> payload;
    bool is_parsed = false;
    const message::SessionHead head = message::pack({.id = 7, .procedure = 3});
    if (message::parse(message, header, payload)) is_parsed = header.id == 7;
    EXPECT_TRUE(is_parsed);
    EXPECT_NE(head, laid);
}

// channel.hpp
TEST(HeaderExamples, CarryAMessage) {
    const auto deadline = patience();
    const Bytes& bytes = request;
    Bytes got;
    std::thread other{[&] {
        auto listener = message::Listener::listen(connect::Address::parse(":7000"));
        auto channel = listener.accept(base::Deadline::after(std::chrono::seconds{10}));
        (void)channel.receive(
            [&](std::span<const std::byte> message) { got.assign(message.begin(), message.end()); },
            deadline);
    }};
    auto channel = message::connect(address, {}, deadline);
    if (channel.send(bytes, deadline) != base::Status::ok) ADD_FAILURE() << channel.failure();
    other.join();
    EXPECT_EQ(got, bytes);
}

/// Both ends of a channel.
struct Ends {
    Ends() {
        auto listener = message::Listener::listen(address);
        std::thread other{[&] { near.emplace(message::connect(address, {}, patience())); }};
        far.emplace(listener.accept(patience()));
        other.join();
    }
    std::optional<message::Channel> near, far;
};

// halves.hpp
TEST(HeaderExamples, SplitAChannel) {
    const auto deadline = patience();
    const Bytes& bytes = request;
    Ends ends;
    message::Channel& channel = *ends.near;
    ASSERT_EQ(ends.far->send(bytes, deadline), Status::ok);
    Bytes got;
    auto [sender, receiver] = std::move(channel).split();
    std::thread other{[&, s = std::move(sender)]() mutable { (void)s.send(bytes, deadline); }};
    (void)receiver.receive(
        [&](std::span<const std::byte> message) { got.assign(message.begin(), message.end()); },
        deadline);
    other.join();
    EXPECT_EQ(got, bytes);
}

// coroutine.hpp
base::Task<> count_messages(message::Channel& channel, int& counted, millrace::connect::Hub& hub) {
    const auto deadline = patience();
    Bytes message;
    while (co_await message::receive(channel, message, deadline) == Status::ok) ++counted;
    hub.stop();
}
TEST(HeaderExamples, ReceiveInACoroutine) {
    Ends ends;
    for (int i = 0; i < 3; ++i) ASSERT_EQ(ends.far->send(request, patience()), Status::ok);
    ASSERT_EQ(ends.far->finish(patience()), Status::ok);
    int counted = 0;
    millrace::connect::Hub hub;
    base::spawn(hub, count_messages(*ends.near, counted, hub));
    EXPECT_EQ(hub.run(patience()), Status::closed);
    EXPECT_EQ(counted, 3);
}

/// Has `use` use what `serve` serves, until it is done; `serve` gets a deadline for that.
template <class Serve, class Use>
void while_serving(Serve serve, Use use) {
    base::Cancellation done;
    std::thread serving{[&] { serve(patience().cancelled_by(done)); }};
    use();
    done.request();
    serving.join();
}
void answer_it(message::Request& request) { (void)request.answer(request.payload()); }
void serve_alone(const base::Deadline& deadline) {
    (void)message::Server::listen(address).serve(answer_it, deadline);
}

// server.hpp
void serve_as_shown(const base::Deadline& deadline) {
    auto server = message::Server::listen(connect::Address::parse(":7000"));
    (void)server.serve([](message::Request& it) { (void)it.answer(it.payload()); }, deadline);
}

// client.hpp
void ask_by_number(message::Client& client, const base::Deadline& deadline);
TEST(HeaderExamples, AskAServer) {
    while_serving(serve_as_shown, [] {
        const auto deadline = patience();
        bool is_answered = false;
        auto client = message::Client::connect(address, {}, deadline);
        std::vector<std::byte> answer;
        if (client.call(request, answer, deadline) == message::Outcome::ok) is_answered = true;
        EXPECT_TRUE(is_answered);
        EXPECT_EQ(answer, request);
        ask_by_number(client, deadline);
    });
}
void ask_by_number(message::Client& client, const base::Deadline& deadline) {
    std::uint64_t answered = 0;
    bool is_sent = false;
    std::uint64_t id;
    if (client.submit(request, id) == base::Status::ok) is_sent = true;
    EXPECT_TRUE(is_sent);
    (void)client.wait([&](const message::Answer& answer) { answered = answer.id; }, deadline);
    EXPECT_EQ(answered, id);
}

// requester.hpp
TEST(HeaderExamples, AskInPlace) {
    while_serving(serve_alone, [] {
        const auto deadline = patience();
        auto client = message::Client::connect(address, {}, deadline);
        static std::size_t size;  // the example captures nothing
        client.call(
            64, [](std::span<std::byte> room) { std::memset(room.data(), 1, room.size()); },
            [](std::span<const std::byte> answer) { size = answer.size(); }, deadline);
        EXPECT_EQ(size, 64U);
    });
}

// transfer.hpp
TEST(HeaderExamples, AskForAnswersBySend) {
    while_serving(serve_alone, [] {
        const auto deadline = patience();
        auto client =
            message::Client::connect(address, {.answers = message::Transfer::send}, deadline);
        Bytes answer;
        EXPECT_EQ(client.call(request, answer, deadline), message::Outcome::ok);
    });
}

// server_group.hpp
TEST(HeaderExamples, AskAServerOfFourThreads) {
    const auto serve = [](const base::Deadline& deadline) {
        auto group = message::ServerGroup::listen(address, {}, {.count = 4});
        (void)group.serve([](message::Request& request) { answer_it(request); }, deadline);
    };
    while_serving(serve, [] {
        auto client = message::Client::connect(address, {}, patience());
        Bytes answer;
        EXPECT_EQ(client.call(request, answer, patience()), message::Outcome::ok);
    });
}

// dispatcher.hpp
TEST(HeaderExamples, AskByADispatcher) {
    while_serving(serve_alone, [] {
        const auto deadline = patience();
        base::Cancellation done;
        const auto never = base::Deadline::never().cancelled_by(done);
        const auto& first = address;
        const auto& second = address;
        bool is_answered = false;
        {
            namespace connect = millrace::connect;
            const connect::Address servers[] = {first, second};
            auto dispatcher = message::Dispatcher::connect(servers, {}, deadline);
            std::jthread thread{[&] {
                dispatcher.adopt();
                (void)dispatcher.run(never);
            }};
            Bytes answer;
            message::Port port = dispatcher.port();
            port.to(1);
            if (port.call(request, answer, deadline) == message::Outcome::ok) is_answered = true;
            done.request();
        }
        EXPECT_TRUE(is_answered);
    });
}

}  // namespace
}  // namespace millrace::examples
