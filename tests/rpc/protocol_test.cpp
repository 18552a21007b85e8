// What travels, and what a server makes of a client that does not keep to it.
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lateness.hpp"
#include "millrace/message/client.hpp"
#include "rpc/serving.hpp"

namespace millrace::rpc {
namespace {

using message::Outcome;
using Bytes = std::vector<std::byte>;

Head full_head() {
    Trace trace{.flags = 3};
    trace.trace_id.fill(std::byte{1});
    trace.parent_id.fill(std::byte{2});
    return {.sent_at = 77,
            .trace = trace,
            .stream = 99,
            .priority = Priority::low,
            .clocks_parted = true};
}
Bytes written(const Head& head, std::size_t behind = 0) {
    Bytes bytes(size_of(head) + behind);
    write(head, bytes.data());
    return bytes;
}

TEST(Heads, SayWhatWasWritten) {
    const Bytes bytes = written(full_head(), 5);
    EXPECT_LE(size_of(full_head()), longest_head);
    Head head;
    std::span<const std::byte> payload;
    ASSERT_TRUE(parse_head(bytes, head, payload));
    EXPECT_EQ(payload.size(), 5U);
    EXPECT_EQ(head.sent_at, 77U);
    EXPECT_EQ(head.trace, full_head().trace);
    EXPECT_EQ(head.stream, 99U);
    EXPECT_EQ(head.priority, Priority::low);
    EXPECT_TRUE(head.clocks_parted);
    EXPECT_EQ(size_of(Head{}), 0U) << "a call of which there is nothing to say costs nothing";
}

TEST(Heads, ThatAreTooShortAreNone) {
    const Bytes whole = written(full_head());
    Head head;
    std::span<const std::byte> payload;
    for (std::size_t size = 0; size < whole.size(); ++size) {
        EXPECT_FALSE(parse_head(std::span{whole}.first(size), head, payload)) << size;
    }
    Bytes bytes = whole;
    bytes[0] = std::byte{1};  // words
    EXPECT_FALSE(parse_head(bytes, head, payload));
    bytes = whole;
    bytes[2] = std::byte{9};  // priority
    EXPECT_FALSE(parse_head(bytes, head, payload));
}

TEST(Heads, OfALaterBuildAreSkipped) {
    Bytes bytes = written({.sent_at = 5}, 24);
    bytes[0] = std::byte{4};    // two more words
    bytes[1] |= std::byte{64};  // and a fact that is not known
    Head head;
    std::span<const std::byte> payload;
    ASSERT_TRUE(parse_head(bytes, head, payload));
    EXPECT_EQ(head.sent_at, 5U);
    EXPECT_EQ(payload.size(), 8U);
}

TEST(Errors, SayWhatWasWritten) {
    const Error error{.code = Code::overloaded,
                      .number = 9,
                      .text = "why",
                      .detail = {std::byte{1}, std::byte{2}}};
    ErrorRoom room;
    const Error read = parse_error(write(error, room));
    EXPECT_EQ(read.code, error.code);
    EXPECT_EQ(read.number, error.number);
    EXPECT_EQ(read.text, error.text);
    EXPECT_EQ(read.detail, error.detail);
}

TEST(Errors, ThatAreTooLongAreCutOff) {
    const Error error{.text = std::string(700, 'x'), .detail = Bytes(500)};
    ErrorRoom room;
    const Error read = parse_error(write(error, room));
    EXPECT_EQ(read.text, error.text);
    EXPECT_EQ(read.detail.size(), longest_error - 700);
}

TEST(Errors, ThatSayWhatOnlyAClientCanFindAreFailures) {
    ErrorRoom room;
    for (const Code code : {Code::ok, Code::not_sent, Code::timed_out, Code::peer_lost}) {
        EXPECT_EQ(parse_error(write(Error{.code = code}, room)).code, Code::failed);
    }
    const std::string text = "text of somebody else";
    EXPECT_EQ(parse_error(std::as_bytes(std::span{text})).code, Code::failed);
    EXPECT_EQ(parse_error({}).code, Code::failed);
}

TEST(Tables, SayWhatWasWritten) {
    const std::vector<ProcedureReport> written{
        {.number = 16,
         .signature = {.name = "get",
                       .request = {Kind::plain, 16, "Key"},
                       .response = {Kind::codec, 0, "value"},
                       .is_idempotent = true},
         .calls = 5,
         .latency_most = 99},
        {.number = 17,
         .signature = {.name = "watch",
                       .request = {Kind::bytes, 0, "bytes"},
                       .response = {Kind::plain, 8, std::string(2000, 'n')},
                       .is_stream = true}}};
    for (const bool with_counts : {false, true}) {
        const Bytes bytes = write_table(written, with_counts);
        const auto read = parse_table(bytes, with_counts);
        ASSERT_TRUE(read.has_value());
        ASSERT_EQ(read->size(), 2U);
        EXPECT_EQ((*read)[0].signature.request, written[0].signature.request);
        EXPECT_TRUE((*read)[0].signature.is_idempotent);
        EXPECT_TRUE((*read)[1].signature.is_stream);
        EXPECT_EQ((*read)[1].signature.response.name.size(), longest_name);
        EXPECT_EQ((*read)[0].calls, with_counts ? 5U : 0U);
        EXPECT_EQ((*read)[0].latency_most, with_counts ? 99U : 0U);
        EXPECT_TRUE(why_different(written[1].signature, (*read)[1].signature).empty());
        for (std::size_t size = 0; size < bytes.size(); ++size) {
            EXPECT_FALSE(parse_table(std::span{bytes}.first(size), with_counts).has_value());
        }
    }
}

TEST(LatenessOfRequests, IsCountedFromTheShortestWay) {
    Lateness lateness;
    // The client's clock is an hour behind; the shortest way takes 10.
    constexpr std::uint64_t hour = 3'600'000'000'000;
    EXPECT_EQ(lateness.age(1000, hour + 1050), 0U) << "the first is the measure";
    EXPECT_EQ(lateness.age(2000, hour + 2010), 0U) << "a shorter way";
    EXPECT_EQ(lateness.age(3000, hour + 3110), 100U);
    // The same with a clock that is ahead, and anything at all.
    lateness.forget();
    EXPECT_EQ(lateness.age(hour, 0), 0U);
    EXPECT_EQ(lateness.age(hour + 10, 60), 50U);
    (void)lateness.age(std::numeric_limits<std::uint64_t>::max(), 0);
    (void)lateness.age(0, std::numeric_limits<std::uint64_t>::max());
}

TEST(LatenessOfRequests, ForgivesClocksThatRunApart) {
    Lateness lateness;
    EXPECT_EQ(lateness.age(0, 0), 0U);
    // The server's clock is faster by 100 parts of a million.
    constexpr std::uint64_t second = 1'000'000'000;
    for (std::uint64_t i = 1; i < 1000; ++i) {
        EXPECT_EQ(lateness.age(i * second, i * (second + second / 10'000)), 0U) << i;
    }
}

TEST(LatenessOfRequests, ForgivesThatHoweverOftenTheyCome) {
    // The same clocks, and requests each microsecond, and at any other pace.
    for (const std::uint64_t pace : {1U, 999U, 1'000U, 4'999U, 5'001U, 7'777U}) {
        Lateness lateness;
        EXPECT_EQ(lateness.age(0, 0), 0U);
        for (std::uint64_t i = 1; i < 200'000; ++i) {
            const std::uint64_t sent_at = i * pace;
            ASSERT_LE(lateness.age(sent_at, sent_at + sent_at / 10'000), 1U) << pace << " " << i;
        }
    }
}

/// A client that says what it likes.
class Liar {
  public:
    explicit Liar(Running& running)
        : client_{message::Client::connect(running.server.address(),
                                           {.tuning = {.service = server_service}}, patience())} {}
    Outcome ask(std::uint16_t procedure, std::span<const std::byte> request,
                base::Deadline deadline = patience()) {
        return client_.call(request, answer_, deadline, procedure);
    }
    [[nodiscard]] Code code() const { return parse_error(answer_).code; }
    void ask_for_table() { EXPECT_EQ(ask(table_number, {}), Outcome::ok); }

  private:
    message::Client client_;
    Bytes answer_;
};
constexpr std::uint16_t add_number = first_number;

TEST(Liars, WhoDidNotAskForTheTableAreToldSo) {
    Running running;
    Liar liar{running};
    const Bytes pair(16);
    EXPECT_EQ(liar.ask(add_number, pair), Outcome::failed);
    EXPECT_EQ(liar.code(), Code::stale_table);
    liar.ask_for_table();
    EXPECT_EQ(liar.ask(add_number, pair), Outcome::ok);
    running.stop();
    EXPECT_EQ(running.server.stats().stale, 1U);
}

TEST(Liars, AreToldWhatCannotBeReadOrFound) {
    Running running;
    Liar liar{running};
    liar.ask_for_table();
    for (const unsigned number : {3U, 15U, 20U, 1000U, 0x7fffU}) {
        EXPECT_EQ(liar.ask(static_cast<std::uint16_t>(number), {}), Outcome::failed);
        EXPECT_EQ(liar.code(), Code::unknown_procedure) << number;
    }
    for (const std::size_t size : {0UL, 3UL, 8UL, 100UL}) {
        EXPECT_EQ(liar.ask(add_number | head_bit, Bytes(size)), Outcome::failed);
        EXPECT_EQ(liar.code(), Code::malformed) << size;
    }
    EXPECT_EQ(liar.ask(add_number, {}), Outcome::ok) << "a tail that is missing is defaulted";
    running.stop();
    EXPECT_EQ(running.server.stats().unknown, 5U);
    EXPECT_EQ(running.server.stats().malformed, 4U);
}

TEST(Liars, WhoseClockHasChangedAreLateUntilTheyHaveTheClocksComparedAnew) {
    Running running;
    Liar liar{running};
    const auto now = static_cast<std::uint64_t>(base::Clock::now().time_since_epoch().count());
    constexpr std::uint64_t hour = 3'600'000'000'000;
    EXPECT_EQ(liar.ask(table_number | head_bit, written({.sent_at = now})), Outcome::ok);
    EXPECT_EQ(liar.ask(add_number | head_bit, written({.sent_at = now - hour}, 16)),
              Outcome::failed);
    EXPECT_EQ(liar.code(), Code::late);
    EXPECT_EQ(liar.ask(add_number | head_bit,
                       written({.sent_at = now - hour, .clocks_parted = true}, 16)),
              Outcome::ok);
    running.stop();
    EXPECT_EQ(running.server.stats().late, 1U);
}

}  // namespace
}  // namespace millrace::rpc
