// Who is let in: secrets against peers that have none, another one, or somebody else's words; and
// budgets that are reached and given back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "millrace/connect/admission.hpp"
#include "peers.hpp"
#include "proof.hpp"
#include "support/readable.hpp"
#include "support/temporary_folder.hpp"
#include "wire.hpp"

namespace millrace::connect {
namespace {

using base::ErrorCode;
using test::bytes;
using test::error_of;
using test::fresh_address;
using test::soon;
using test::Stranger;
using testing::HasSubstr;
using namespace std::chrono_literals;

const Secret right{"the right secret of this test"};
const Secret wrong{"the wrong secret of this test"};

LinkOptions with(const Secret& secret) { return {.admission = {.secret = secret}}; }
LinkOptions with(const Budget& budget) { return {.admission = {.budget = budget}}; }

/// Cuts what a stranger hears into frames.
class Hearing {
  public:
    explicit Hearing(const Stranger& stranger) : stranger_{&stranger} {}
    /// Header and body; empty at the end.
    std::string frame() {
        for (;;) {
            if (heard_.size() >= header_bytes) {
                std::size_t size = header_bytes;
                for (std::size_t i = 0; i < 4; ++i) {
                    size += std::size_t{static_cast<unsigned char>(heard_[8 + i])} << (8 * i);
                }
                if (heard_.size() >= size) {
                    std::string one = heard_.substr(0, size);
                    heard_.erase(0, size);
                    return one;
                }
            }
            const std::string more = stranger_->hear();
            if (more.empty()) return {};
            heard_ += more;
        }
    }
    /// The next one, which must be of that type.
    std::string frame(FrameType type) {
        std::string one = frame();
        EXPECT_EQ(type_of(one), type) << one;
        return one;
    }
    static FrameType type_of(const std::string& frame) {
        return frame.size() < header_bytes ? FrameType{} : static_cast<FrameType>(frame[6]);
    }

  private:
    const Stranger* stranger_;
    std::string heard_;
};

/// A client and a listener that have the same secret, and somebody between them who hands on what
/// they say, or something else.
struct Between {
    Between()
        : listener{Listener::listen(fresh_address(), with(right))},
          address{fresh_address()},
          own{Stranger::listen_on(address)},
          accepted{std::async(
              std::launch::async,
              [this] { return failure([this] { (void)listener.accept_one(soon()); }); })},
          connected{std::async(
              std::launch::async,
              [this] { return failure([this] { (void)connect(address, with(right), soon()); }); })},
          client{own.accept()},
          server{Stranger::connect_to(listener.address())} {}

    /// What it ended with: nothing, if all went well.
    template <class Action>
    static std::string failure(Action&& action) {
        try {
            action();
            return {};
        } catch (const base::Error& error) {
            return error.what();
        }
    }

    Listener listener;
    Address address;
    Stranger own;
    std::future<std::string> accepted;
    std::future<std::string> connected;
    Stranger client;  ///< talks to it
    Stranger server;
    Hearing from_client{client};
    Hearing from_server{server};
};

TEST(Secret, HasEnoughBytesAndNotTooMany) {
    EXPECT_FALSE(Secret{});
    EXPECT_TRUE(Secret{}.bytes().empty());
    for (const std::size_t size : {std::size_t{16}, std::size_t{1024}}) {
        const Secret secret{std::string(size, 'x')};
        EXPECT_TRUE(secret);
        EXPECT_EQ(secret.bytes().size(), size);
    }
    for (const std::size_t size : {std::size_t{0}, std::size_t{15}, std::size_t{1025}}) {
        EXPECT_EQ(error_of([&] { (void)Secret{std::string(size, 'x')}; }).code(),
                  ErrorCode::invalid_argument)
            << size;
    }
}

TEST(SecretFile, IsReadWithoutItsLineEnd) {
    const millrace::test::TemporaryFolder folder;
    const std::string path = folder.path("secret");
    std::ofstream{path} << "0123456789abcdef\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    EXPECT_EQ(test::text(read_secret_file(path).bytes()), "0123456789abcdef");
    std::filesystem::permissions(path, std::filesystem::perms{0600});
    std::ofstream{path} << std::string(Secret::max_bytes, 'x') << "\r\n";
    EXPECT_EQ(read_secret_file(path).bytes().size(), Secret::max_bytes);
}

TEST(SecretFile, IsRefusedWhereOthersMayReadOrWriteIt) {
    const millrace::test::TemporaryFolder folder;
    const std::string path = folder.path("secret");
    std::ofstream{path} << "0123456789abcdef";
    for (const unsigned mode : {0640U, 0604U, 0620U, 0602U, 0610U}) {
        ASSERT_EQ(chmod(path.c_str(), mode), 0);
        const base::Error error = error_of([&] { (void)read_secret_file(path); });
        EXPECT_EQ(error.code(), ErrorCode::permission) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("chmod 600"));
    }
}

TEST(SecretFile, IsRefusedWhereItIsNone) {
    const millrace::test::TemporaryFolder folder;
    const std::string path = folder.path("secret");
    EXPECT_EQ(error_of([&] { (void)read_secret_file(path); }).code(), ErrorCode::not_found);
    EXPECT_EQ(error_of([&] { (void)read_secret_file(folder.path()); }).code(),
              ErrorCode::invalid_argument);
    ASSERT_EQ(mkfifo((path + ".pipe").c_str(), 0600), 0);
    EXPECT_EQ(error_of([&] { (void)read_secret_file(path + ".pipe"); }).code(),
              ErrorCode::invalid_argument);
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{15}, std::size_t{1025}, std::size_t{5000}}) {
        std::ofstream{path} << std::string(size, 'x') << "\n";
        ASSERT_EQ(chmod(path.c_str(), 0600), 0);
        EXPECT_EQ(error_of([&] { (void)read_secret_file(path); }).code(),
                  ErrorCode::invalid_argument)
            << size;
    }
}

TEST(Proof, IsThatOfTheStandard) {
    // As Python's hmac has it, over the same parts and lengths.
    const Digest digest = prove(Secret{"0123456789abcdef"}, "label", {bytes("one"), bytes("")});
    std::string text;
    for (const std::byte one : digest) {
        text += "0123456789abcdef"[std::to_integer<unsigned>(one) >> 4];
        text += "0123456789abcdef"[std::to_integer<unsigned>(one) & 15];
    }
    EXPECT_EQ(text, "a92b548213789533bcfa1f888a08b25b14853640234e0dbd70043e210685e76e");
}

TEST(Proof, DependsOnTheSecretTheLabelAndWhereAPartEnds) {
    const Digest one = prove(right, "label", {bytes("one"), bytes("two")});
    EXPECT_TRUE(equal(one, prove(right, "label", {bytes("one"), bytes("two")})));
    EXPECT_FALSE(equal(one, prove(wrong, "label", {bytes("one"), bytes("two")})));
    EXPECT_FALSE(equal(one, prove(right, "labe", {bytes("one"), bytes("two")})));
    EXPECT_FALSE(equal(one, prove(right, "label", {bytes("onet"), bytes("wo")})));
    EXPECT_FALSE(equal(one, prove(right, "label", {bytes("one"), bytes("two"), {}})));
    EXPECT_NE(random_nonce(), random_nonce());
}

TEST(Admission, LetsInWhoKnowsTheSecret) {
    test::Pair pair{with(right)};
    EXPECT_EQ(pair.a->peer_now(), PeerState::alive);
    EXPECT_THAT(pair.a->explain(), HasSubstr("a secret that both ends have proved to know"));
    EXPECT_THAT(pair.b->explain(), HasSubstr("a secret that both ends have proved to know"));
    pair.a->say(bytes("word"));
    EXPECT_EQ(test::text(pair.b->hear(soon())), "word");
    const test::Pair open;
    EXPECT_THAT(open.a->explain(), testing::Not(HasSubstr("secret")));
}

TEST(Admission, RefusesWithoutTheSecretAndTellsBothEnds) {
    struct Case {
        Secret listening;
        Secret connecting;
        const char* heard;
        const char* told;
    };
    const Case cases[] = {
        {right, wrong, "the peer does not know this end's secret",
         "the peer refused: this end does not know its secret"},
        {right,
         {},
         "this end admits only who knows its secret, and the peer has none",
         "the peer refused: it admits only who knows its secret, and this end has none"},
        {{},
         right,
         "the peer admits only who knows its secret, and this end has none",
         "the peer refused: it has no secret, and this end admits only who knows its own"},
    };
    for (const Case& one : cases) {
        Listener listener = Listener::listen(fresh_address(), with(one.listening));
        auto accepted = std::async(std::launch::async, [&] {
            return error_of([&] { (void)listener.accept_one(soon()); });
        });
        const base::Error error =
            error_of([&] { (void)connect(listener.address(), with(one.connecting), soon()); });
        EXPECT_EQ(error.code(), ErrorCode::refused);
        EXPECT_THAT(error.what(), HasSubstr(one.told));
        const base::Error other = accepted.get();
        EXPECT_EQ(other.code(), ErrorCode::refused);
        EXPECT_THAT(other.what(), HasSubstr(one.heard));
        EXPECT_EQ(listener.given().clients, 0U);
    }
}

TEST(Admission, TellsWhoDoesNotKnowTheSecretNothingOfItself) {
    Listener listener = Listener::listen(
        fresh_address(), {.service = "private matter", .admission = {.secret = right}});
    auto accepted = std::async(
        std::launch::async, [&] { return error_of([&] { (void)listener.accept_one(soon()); }); });
    const Stranger stranger = Stranger::connect_to(listener.address());
    stranger.say(encode(Hello{.service = "link", .has_secret = true}));
    Hearing hearing{stranger};
    (void)hearing.frame(FrameType::challenge);
    stranger.say(encode(Proof{}));
    const std::string told = hearing.frame(FrameType::refused);
    EXPECT_THAT(told, testing::Not(HasSubstr("private matter")));
    EXPECT_EQ(accepted.get().code(), ErrorCode::refused);
}

TEST(Admission, LetsSomebodyBetweenHandOnWhatIsSaid) {
    // So what the tests below change is what they fail for.
    Between between;
    between.server.say(between.from_client.frame(FrameType::hello));
    between.client.say(between.from_server.frame(FrameType::challenge));
    between.server.say(between.from_client.frame(FrameType::proof));
    between.client.say(between.from_server.frame(FrameType::hello));
    between.client.say(between.from_server.frame(FrameType::ready));
    between.server.say(between.from_client.frame(FrameType::ready));
    EXPECT_EQ(between.accepted.get(), "");
    EXPECT_EQ(between.connected.get(), "");
}

TEST(Admission, RefusesAnAnswerThatIsReplayed) {
    std::string hello, proof;
    {
        Between between;
        between.server.say(hello = between.from_client.frame(FrameType::hello));
        between.client.say(between.from_server.frame(FrameType::challenge));
        between.server.say(proof = between.from_client.frame(FrameType::proof));
        between.client.say(between.from_server.frame(FrameType::hello));
        between.client.say(between.from_server.frame(FrameType::ready));
        between.server.say(between.from_client.frame(FrameType::ready));
        EXPECT_EQ(between.accepted.get(), "");
        EXPECT_EQ(between.connected.get(), "");
    }
    Listener listener = Listener::listen(fresh_address(), with(right));
    auto accepted = std::async(
        std::launch::async, [&] { return error_of([&] { (void)listener.accept_one(soon()); }); });
    const Stranger stranger = Stranger::connect_to(listener.address());
    Hearing hearing{stranger};
    stranger.say(hello);
    (void)hearing.frame(FrameType::challenge);
    stranger.say(proof);
    EXPECT_THAT(hearing.frame(FrameType::refused), HasSubstr("this end does not know its secret"));
    EXPECT_THAT(accepted.get().what(), HasSubstr("the peer does not know this end's secret"));
}

TEST(Admission, RefusesAProofThatIsReflectedToTheListener) {
    Between between;
    between.server.say(between.from_client.frame(FrameType::hello));
    between.client.say(between.from_server.frame(FrameType::challenge));
    between.server.say(between.from_client.frame(FrameType::proof));
    (void)between.from_server.frame(FrameType::hello);
    between.server.say(between.from_server.frame(FrameType::ready));
    EXPECT_THAT(between.accepted.get(), HasSubstr("the peer does not know this end's secret"));
    between.client.hang_up();
    EXPECT_NE(between.connected.get(), "");
}

TEST(Admission, RefusesAProofThatIsReflectedToTheClient) {
    const Address address = fresh_address();
    const Stranger stranger = Stranger::listen_on(address);
    auto connected = std::async(std::launch::async, [&] {
        return error_of([&] { (void)connect(address, with(right), soon()); });
    });
    const Stranger client = stranger.accept();
    Hearing hearing{client};
    const std::string hello = hearing.frame(FrameType::hello);
    client.say(encode(Challenge{random_nonce()}));
    const std::string proof = hearing.frame(FrameType::proof);
    client.say(hello);
    Ready ready{.proof = Digest{}};
    std::memcpy(ready.proof->data(), proof.data() + header_bytes, sizeof(Digest));
    client.say(encode(ready));
    EXPECT_THAT(hearing.frame(FrameType::refused), HasSubstr("this end does not know its secret"));
    EXPECT_EQ(connected.get().code(), ErrorCode::refused);
}

TEST(Admission, RefusesAHelloThatWasChangedOnTheWay) {
    // The packet sequence: nothing else would notice.
    const std::size_t place = header_bytes + 8 + 2 + std::string{"link"}.size() + 4 + 4;
    {
        Between between;
        std::string hello = between.from_client.frame(FrameType::hello);
        hello[place] ^= 1;
        between.server.say(hello);
        between.client.say(between.from_server.frame(FrameType::challenge));
        between.server.say(between.from_client.frame(FrameType::proof));
        EXPECT_THAT(between.accepted.get(), HasSubstr("the peer does not know this end's secret"));
        between.client.hang_up();
        EXPECT_NE(between.connected.get(), "");
    }
    Between between;
    between.server.say(between.from_client.frame(FrameType::hello));
    between.client.say(between.from_server.frame(FrameType::challenge));
    between.server.say(between.from_client.frame(FrameType::proof));
    std::string hello = between.from_server.frame(FrameType::hello);
    hello[place] ^= 1;
    between.client.say(hello);
    between.client.say(between.from_server.frame(FrameType::ready));
    EXPECT_THAT(between.connected.get(), HasSubstr("the peer does not know this end's secret"));
    between.server.hang_up();
    EXPECT_NE(between.accepted.get(), "");
}

TEST(Admission, RefusesAListenerThatAsksForNoProof) {
    const Address address = fresh_address();
    const Stranger stranger = Stranger::listen_on(address);
    for (const bool says_it_has_one : {false, true}) {
        auto connected = std::async(std::launch::async, [&] {
            return error_of([&] { (void)connect(address, with(right), soon()); });
        });
        const Stranger client = stranger.accept();
        Hearing hearing{client};
        (void)hearing.frame(FrameType::hello);
        client.say(encode(Hello{.service = "link", .has_secret = says_it_has_one}));
        client.say(encode(Ready{}));
        (void)hearing.frame(FrameType::refused);
        EXPECT_EQ(connected.get().code(),
                  says_it_has_one ? ErrorCode::protocol : ErrorCode::refused);
    }
}

TEST(Admission, HasPlaceForAsManyClientsAsItsBudgetSays) {
    Listener listener = Listener::listen(fresh_address(), with(Budget{.clients = 2}));
    std::vector<Link> near, far;
    const auto join = [&] {
        auto accepted = test::accept_in_background(listener);
        near.push_back(connect(listener.address(), {}, soon()));
        far.push_back(accepted.get());
    };
    join();
    join();
    EXPECT_EQ(listener.given().clients, 2U);
    EXPECT_EQ(listener.given().queue_pairs, 2U);
    auto accepted = std::async(
        std::launch::async, [&] { return error_of([&] { (void)listener.accept_one(soon()); }); });
    const base::Error error = error_of([&] { (void)connect(listener.address(), {}, soon()); });
    EXPECT_EQ(error.code(), ErrorCode::refused);
    EXPECT_THAT(error.what(), HasSubstr("the peer refused: the listener serves 2 clients at most, "
                                        "and has 2; come again when others have left"));
    EXPECT_THAT(accepted.get().what(), HasSubstr("serves 2 clients at most"));
    EXPECT_EQ(listener.given().clients, 2U);
    far.pop_back();
    EXPECT_EQ(listener.given().clients, 1U);
    join();
    EXPECT_EQ(far.back().peer_now(), PeerState::alive);
    far.clear();
    EXPECT_EQ(listener.given().clients, 0U);
    EXPECT_EQ(listener.given().queue_pairs, 0U);
}

TEST(Admission, OutlivesItsListener) {
    auto pair = std::make_unique<test::Pair>(with(Budget{.clients = 1}));
    Link far = std::move(*pair->b);
    pair.reset();
    EXPECT_NE(far.peer_now(), PeerState::alive);
}

TEST(Admission, CountsSecondQueuePairs) {
    Listener listener = Listener::listen(fresh_address(), with(Budget{.queue_pairs = 3}));
    std::vector<Link> near, far;
    for (int i = 0; i < 2; ++i) {
        auto accepted = test::accept_in_background(listener);
        near.push_back(connect(listener.address(), {}, soon()));
        far.push_back(accepted.get());
    }
    for (std::size_t i = 0; i < 2; ++i) {
        auto opened = std::async(std::launch::async, [&] {
            return Between::failure([&] { near[i].open_second_queue(4, soon()); });
        });
        const std::string here = Between::failure([&] { far[i].open_second_queue(4, soon()); });
        const std::string there = opened.get();
        if (i == 0) {
            EXPECT_EQ(here, "");
            EXPECT_EQ(there, "");
            continue;
        }
        EXPECT_THAT(here, HasSubstr("the listener has 3 queue pairs at most, and has 3"));
        EXPECT_THAT(there, HasSubstr("the peer refused: the listener has 3 queue pairs at most"));
    }
    EXPECT_EQ(listener.given().queue_pairs, 3U);
    far.clear();
    EXPECT_EQ(listener.given().queue_pairs, 0U);
}

TEST(Admission, CountsMemoryAndTellsThePeerWhenThereIsNoMore) {
    const auto page = static_cast<std::uint64_t>(getpagesize());
    Listener listener =
        Listener::listen(fresh_address(), with(Budget{.registered_bytes = 3 * page}));
    auto accepted = test::accept_in_background(listener);
    Link near = connect(listener.address(), {}, soon());
    Link far = accepted.get();
    const auto memory = far.allocate(2 * page - 1, verbs::Access::remote_write);
    EXPECT_EQ(listener.given().registered_bytes, 2 * page);
    // That of who connects is its own business.
    const auto other = near.allocate(4 * page, verbs::Access::remote_write);
    const base::Error here =
        error_of([&] { (void)far.allocate(page + 1, verbs::Access::remote_write); });
    EXPECT_EQ(here.code(), ErrorCode::refused);
    const base::Error there = error_of([&] { (void)near.hear(soon()); });
    EXPECT_EQ(there.code(), ErrorCode::refused);
    EXPECT_THAT(there.what(),
                HasSubstr("the peer refused: the listener registers " + std::to_string(3 * page) +
                          " bytes at most, and has " + std::to_string(2 * page) +
                          " (this one needs " + std::to_string(2 * page) + " more)"));
    { const Link gone = std::move(far); }
    EXPECT_EQ(listener.given().registered_bytes, 0U);
}

/// How a WRITE of the first client to memory that was registered for the second one ends.
ibv_wc_status write_to_anothers(bool own_domains) {
    Listener listener =
        Listener::listen(fresh_address(), {.admission = {.own_domains = own_domains}});
    std::vector<Link> near, far;
    for (int i = 0; i < 2; ++i) {
        auto accepted = test::accept_in_background(listener);
        near.push_back(connect(listener.address(), {}, soon()));
        far.push_back(accepted.get());
    }
    const auto memory = far[1].allocate(4096, verbs::Access::remote_write);
    auto own = near[0].protection_domain().allocate(4096, verbs::Access::local_write);
    const ibv_sge from = own.slice(0, 8);
    EXPECT_EQ(near[0].queue_pair().post(verbs::Write{
                  .from = {&from, 1}, .to = memory.remote(), .flags = verbs::SendFlags::signaled}),
              0);
    verbs::Completion completion;
    EXPECT_TRUE(test::eventually([&] { return near[0].send_queue().poll({&completion, 1}) == 1; }));
    return completion.status();
}

TEST(Admission, KeepsClientsWithDomainsOfTheirOwnOutOfEachOthersMemory) {
    EXPECT_EQ(write_to_anothers(false), IBV_WC_SUCCESS);
    EXPECT_EQ(write_to_anothers(true), IBV_WC_REM_ACCESS_ERR);
}

TEST(Admission, GivesNoPlaceToThoseWhoProveNothing) {
    Listener listener = Listener::listen(
        fresh_address(), {.admission = {.secret = right, .budget = {.clients = 1}}});
    std::vector<Stranger> crowd;
    for (int i = 0; i < 10; ++i) {
        crowd.push_back(Stranger::connect_to(listener.address()));
        crowd.back().say(encode(Hello{.service = "link", .has_secret = true}));
    }
    auto accepted = test::accept_in_background(listener);
    Link near = connect(listener.address(), with(right), soon());
    Link far = accepted.get();
    EXPECT_EQ(far.peer_now(), PeerState::alive);
    EXPECT_EQ(listener.given().clients, 1U);
    for (const Stranger& one : crowd) {
        EXPECT_EQ(Hearing::type_of(Hearing{one}.frame()), FrameType::challenge);
    }
}

TEST(Admission, GivesThePlaceOfWhoStopsInTheMiddleToTheNext) {
    Listener listener = Listener::listen(fresh_address(), with(Budget{.clients = 1}));
    // Says a hello of somebody else's, whose queue pair was real, and then no more.
    std::string hello;
    {
        const Address address = fresh_address();
        const Stranger somebody = Stranger::listen_on(address);
        (void)error_of([&] { (void)connect(address, {}, test::within(20ms)); });
        const Stranger client = somebody.accept();
        hello = Hearing{client}.frame(FrameType::hello);
    }
    Stranger half = Stranger::connect_to(listener.address());
    half.say(hello);
    EXPECT_TRUE(test::eventually([&] {
        EXPECT_FALSE(listener.try_accept().has_value());
        return listener.given().clients == 1;
    }));
    half.hang_up();
    EXPECT_TRUE(test::eventually([&] {
        EXPECT_FALSE(listener.try_accept().has_value());
        return listener.given().clients == 0;
    }));
    auto accepted = test::accept_in_background(listener);
    Link near = connect(listener.address(), {}, soon());
    EXPECT_EQ(accepted.get().peer_now(), PeerState::alive);
}

}  // namespace
}  // namespace millrace::connect
