// Connecting, and everything that can go wrong while two ends get to know each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "identity.hpp"
#include "peers.hpp"
#include "support/child_process.hpp"
#include "support/temporary_folder.hpp"
#include "wire.hpp"

namespace millrace::connect {
namespace {

using base::ErrorCode;
using millrace::test::ChildProcess;
using test::bytes;
using test::error_of;
using test::fresh_address;
using test::soon;
using test::Stranger;
using test::within;
using testing::HasSubstr;
using namespace std::chrono_literals;

bool default_device_is_soft() { return verbs::find_device().is_soft(); }

TEST(Connect, FindsTheListenerOverTcpAndUnixSockets) {
    for (const Address& where : {Address::parse("127.0.0.1:0"), Address::parse("localhost:0"),
                                 Address::parse(":0"), fresh_address()}) {
        Listener listener = Listener::listen(where);
        auto accepted = test::accept_in_background(listener);
        Link a = connect(listener.address(), {}, soon());
        Link b = accepted.get();
        EXPECT_EQ(a.peer_now(), PeerState::alive);
        EXPECT_EQ(b.peer_now(), PeerState::alive);
        EXPECT_THAT(a.peer_name(), HasSubstr("pid " + std::to_string(getpid())));
        EXPECT_THAT(b.peer_name(), HasSubstr("pid " + std::to_string(getpid())));
    }
}

TEST(Connect, WaitsForAListenerThatComesLater) {
    const Address address = fresh_address();
    auto listening = std::async(std::launch::async, [&] {
        std::this_thread::sleep_for(30ms);
        Listener listener = Listener::listen(address);
        return listener.accept(soon());
    });
    Link link = connect(address, {}, soon());
    EXPECT_EQ(link.peer_now(), PeerState::alive);
    (void)listening.get();
}

TEST(Connect, SaysThatNothingListens) {
    // A port that nobody else gets meanwhile.
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof own;
    const int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(bind(bound, reinterpret_cast<const sockaddr*>(&own), size), 0);
    ASSERT_EQ(getsockname(bound, reinterpret_cast<sockaddr*>(&own), &size), 0);
    const Stranger deaf{bound};
    const std::string closed_port = "127.0.0.1:" + std::to_string(ntohs(own.sin_port));
    for (const Address& address : {Address::parse(closed_port), fresh_address(),
                                   Address::parse("unix:/nonexistent-folder/socket")}) {
        const base::Error error = error_of([&] { (void)connect(address, {}, within(100ms)); });
        EXPECT_EQ(error.code(), ErrorCode::refused) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("nothing listens there"));
        EXPECT_THAT(error.what(), HasSubstr(address.to_string()));
    }
}

TEST(Connect, FailsAtOnceForAHostThatDoesNotExist) {
    const base::Error error = error_of([] {
        (void)connect(Address::parse("no-such-host.invalid:7"), {}, base::Deadline::never());
    });
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("no-such-host.invalid"));
}

TEST(Connect, RefusesPortZero) {
    EXPECT_EQ(error_of([] { (void)connect(Address::parse("host:0"), {}, soon()); }).code(),
              ErrorCode::invalid_argument);
}

TEST(Connect, CanBeCancelled) {
    base::Cancellation cancellation;
    std::jthread canceller{[&] {
        std::this_thread::sleep_for(20ms);
        cancellation.request();
    }};
    const base::Error error = error_of([&] {
        (void)connect(fresh_address(), {}, base::Deadline::never().cancelled_by(cancellation));
    });
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
}

TEST(Connect, TimesOutOnAListenerThatSaysNothing) {
    const Address address = fresh_address();
    const Stranger stranger = Stranger::listen_on(address);
    const base::Error error = error_of([&] { (void)connect(address, {}, within(100ms)); });
    EXPECT_EQ(error.code(), ErrorCode::timed_out);
    EXPECT_THAT(error.what(), HasSubstr("said nothing"));
}

TEST(Connect, NamesWhatAnswersInsteadOfMillrace) {
    const Address address = fresh_address();
    const Stranger stranger = Stranger::listen_on(address);
    auto served = std::async(std::launch::async, [&] {
        const Stranger client = stranger.accept();
        client.say("HTTP/1.1 400 Bad Request\r\n\r\n");
        (void)client.hear_all();
    });
    const base::Error error = error_of([&] { (void)connect(address, {}, soon()); });
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    EXPECT_THAT(error.what(), HasSubstr("this looks like HTTP, not Millrace"));
}

TEST(Connect, NamesAPeerThatClosesInTheMiddle) {
    const Address address = fresh_address();
    const Stranger stranger = Stranger::listen_on(address);
    const std::vector<std::byte> hello = encode(Hello{.service = "link"});
    for (const std::size_t said : {std::size_t{0}, std::size_t{3}, hello.size() - 1}) {
        auto served = std::async(std::launch::async, [&] {
            const Stranger client = stranger.accept();
            (void)client.hear();
            client.say(std::span{hello}.first(said));
        });
        const base::Error error = error_of([&] { (void)connect(address, {}, soon()); });
        EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("after " + std::to_string(said) + " bytes"));
    }
}

TEST(Connect, NamesTheVersionOfAnotherRelease) {
    const Address address = fresh_address();
    const Stranger stranger = Stranger::listen_on(address);
    auto served = std::async(std::launch::async, [&] {
        const Stranger client = stranger.accept();
        std::vector<std::byte> hello = encode(Hello{.service = "link"});
        hello[4] = std::byte{4};
        client.say(hello);
        (void)client.hear_all();
    });
    const base::Error error = error_of([&] { (void)connect(address, {}, soon()); });
    EXPECT_EQ(error.code(), ErrorCode::version_mismatch);
    EXPECT_THAT(error.what(), HasSubstr("the peer speaks protocol version 4, this build speaks 3"));
}

TEST(Connect, TimesOutOnAStoppedListener) {
    const Address address = fresh_address();
    ChildProcess child = ChildProcess::start("accept_for_ever", {address.to_string()});
    ASSERT_EQ(child.read_line(), "listening");
    ASSERT_TRUE(child.stop());
    const base::Error error = error_of([&] { (void)connect(address, {}, within(200ms)); });
    EXPECT_EQ(error.code(), ErrorCode::timed_out);
    child.resume();
    // And once it goes on, the one that gave up is passed over.
    Link link = connect(address, {}, soon());
    EXPECT_EQ(link.peer_now(), PeerState::alive);
    child.kill_and_wait();
}

MILLRACE_CHILD(accept_for_ever) {
    Listener listener = Listener::listen(Address::parse(arguments.at(0)));
    millrace::test::say("listening");
    std::vector<Link> links;
    for (;;) links.push_back(listener.accept(base::Deadline::never()));
}

TEST(Handshake, RefusesAnotherServiceByName) {
    Listener listener = Listener::listen(fresh_address(), {.service = "flow"});
    auto accepted = std::async(
        std::launch::async, [&] { return error_of([&] { (void)listener.accept_one(soon()); }); });
    const base::Error error =
        error_of([&] { (void)connect(listener.address(), {.service = "message"}, soon()); });
    EXPECT_EQ(error.code(), ErrorCode::refused);
    EXPECT_THAT(error.what(),
                HasSubstr("the peer refused: it offers the service 'flow', this end 'message'; "
                          "check the address"));
    const base::Error other = accepted.get();
    EXPECT_EQ(other.code(), ErrorCode::refused);
    EXPECT_THAT(other.what(), HasSubstr("the peer offers the service 'message', this end 'flow'"));
}

TEST(Handshake, RefusesAnotherVersionOfAService) {
    Listener listener =
        Listener::listen(fresh_address(), {.service = "flow", .service_version = 3});
    auto accepted = std::async(
        std::launch::async, [&] { return error_of([&] { (void)listener.accept_one(soon()); }); });
    const base::Error error = error_of([&] {
        (void)connect(listener.address(), {.service = "flow", .service_version = 4}, soon());
    });
    EXPECT_EQ(error.code(), ErrorCode::version_mismatch);
    EXPECT_THAT(error.what(), HasSubstr("it has version 3 of the service 'flow', this end 4; run"));
    const base::Error other = accepted.get();
    EXPECT_EQ(other.code(), ErrorCode::version_mismatch);
    EXPECT_THAT(other.what(),
                HasSubstr("the peer has version 4 of the service 'flow', this end 3"));
}

TEST(Handshake, ComparesTheProtocolsOfProgramsWhereBothNameOne) {
    const Protocol none;
    const Protocol orders{.name = "orders", .version = 2};
    struct Case {
        Protocol listens;
        Protocol connects;
        ErrorCode code;      ///< closed: it is taken
        const char* told{};  ///< to who connects
        const char* heard{};
    };
    for (const Case& one :
         {Case{orders, orders, ErrorCode::closed}, Case{orders, none, ErrorCode::closed},
          Case{none, orders, ErrorCode::closed},
          Case{orders,
               {.name = "orders", .version = 3},
               ErrorCode::version_mismatch,
               "it has version 2 of the protocol 'orders', this end 3; run programs of the same",
               "the peer has version 3 of the protocol 'orders', this end 2"},
          Case{orders,
               {.name = "bills", .version = 2},
               ErrorCode::refused,
               "it speaks the protocol 'orders', this end 'bills'; check the address",
               "the peer speaks the protocol 'bills', this end 'orders'"}}) {
        for (const Transport transport : {Transport::rc, Transport::tcp}) {
            Listener listener = Listener::listen(
                fresh_address(),
                {.protocol = one.listens, .accepted = {Transport::rc, Transport::tcp}});
            const LinkOptions options{.protocol = one.connects, .transport = transport};
            auto accepted = std::async(std::launch::async, [&] {
                if (one.code != ErrorCode::closed) {
                    return error_of([&] { (void)listener.accept_one(soon()); });
                }
                Link link = listener.accept_one(soon());
                return base::Error{ErrorCode::closed, "", "", "", ""};
            });
            if (one.code == ErrorCode::closed) {
                const Link link = connect(listener.address(), options, soon());
                EXPECT_EQ(accepted.get().code(), ErrorCode::closed);
                continue;
            }
            const base::Error error =
                error_of([&] { (void)connect(listener.address(), options, soon()); });
            EXPECT_EQ(error.code(), one.code);
            EXPECT_THAT(error.what(), HasSubstr(one.told));
            const base::Error other = accepted.get();
            EXPECT_EQ(other.code(), one.code);
            EXPECT_THAT(other.what(), HasSubstr(one.heard));
        }
    }
}

TEST(Handshake, RefusesASoftDeviceOfAnotherFabric) {
    if (!default_device_is_soft()) GTEST_SKIP() << "fabrics belong to the soft device";
    Listener listener = Listener::listen(fresh_address());
    ChildProcess child = ChildProcess::start("connect_and_report", {listener.address().to_string()},
                                             {"MILLRACE_FABRIC=elsewhere"});
    const base::Error error = error_of([&] { (void)listener.accept_one(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::refused);
    EXPECT_THAT(error.what(), HasSubstr("share no memory"));
    EXPECT_THAT(error.what(), HasSubstr("fabric 'default' here, 'elsewhere' there"));
    const std::string told = child.read_line().value_or("");
    EXPECT_THAT(told, HasSubstr("the peer refused: the two soft devices share no memory: fabric "
                                "'elsewhere' here, 'default' there"));
    EXPECT_THAT(told, HasSubstr("one fabric (MILLRACE_FABRIC)"));
    EXPECT_TRUE(child.wait().exited_with(1));
}

TEST(Handshake, TellsAPeerThatGaveUpOfItsOwnPatience) {
    const Address address = fresh_address();
    const Stranger stranger = Stranger::listen_on(address);
    (void)error_of([&] { (void)connect(address, {}, within(20ms)); });
    EXPECT_THAT(stranger.accept().hear_all(),
                HasSubstr("this end took the connection and said nothing"));
}

TEST(Handshake, RefusesHardwareAgainstTheSoftDevice) {
    if (default_device_is_soft()) GTEST_SKIP() << "needs a second kind of device";
    Listener listener = Listener::listen(fresh_address());
    ChildProcess child = ChildProcess::start("connect_and_report", {listener.address().to_string()},
                                             {"MILLRACE_DEVICE=soft0"});
    const base::Error error = error_of([&] { (void)listener.accept_one(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::refused);
    EXPECT_THAT(error.what(), HasSubstr("soft0"));
    EXPECT_TRUE(child.wait().exited_with(1));
}

MILLRACE_CHILD(connect_and_report) {
    try {
        (void)connect(Address::parse(arguments.at(0)), {}, soon());
        millrace::test::say("connected");
        return 0;
    } catch (const base::Error& error) {
        millrace::test::say(error.what());
        return 1;
    }
}

TEST(Accept, TimesOutWhenNobodyComes) {
    Listener listener = Listener::listen(fresh_address());
    const base::Error error = error_of([&] { (void)listener.accept(within(10ms)); });
    EXPECT_EQ(error.code(), ErrorCode::timed_out);
    EXPECT_THAT(error.what(), HasSubstr("nobody connected"));
    EXPECT_EQ(error_of([&] { (void)listener.accept(base::Deadline::now()); }).code(),
              ErrorCode::timed_out);
}

TEST(Accept, NamesWhoWasRefusedWhenNobodyElseCame) {
    Listener listener = Listener::listen(fresh_address(), {.service = "flow"});
    auto connecting = std::async(std::launch::async, [&] {
        return error_of([&] { (void)connect(listener.address(), {.service = "message"}, soon()); });
    });
    std::string what;
    const bool named = test::eventually([&] {
        what = error_of([&] { (void)listener.accept(within(20ms)); }).what();
        return what.find("the one peer that came did not get in") != std::string::npos;
    });
    EXPECT_EQ(connecting.get().code(), ErrorCode::refused);
    ASSERT_TRUE(named) << what;
    EXPECT_THAT(what, HasSubstr("the peer offers the service 'message', this end 'flow'; check"));
}

TEST(Accept, SaysThatAForkedChildCannot) {
    Listener listener = Listener::listen(fresh_address());
    const pid_t child = fork();
    if (child == 0) {
        int code = 1;
        try {
            (void)listener.accept(soon());
        } catch (const base::Error& error) {
            const std::string what = error.what();
            code = what.find("made by fork; make one in the child") != std::string::npos ? 7 : 2;
        }
        _exit(code);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
    auto accepted = test::accept_in_background(listener);
    Link link = connect(listener.address(), {}, soon());
    EXPECT_EQ(accepted.get().peer_now(), PeerState::alive) << "the parent still can";
}

TEST(Accept, GoesOnWhereAForkedChildHasEndedItsCopy) {
    const millrace::test::TemporaryFolder folder;
    Listener listener = Listener::listen(Address::parse("unix:" + folder.path("socket")));
    const pid_t child = fork();
    if (child == 0) {
        { const Listener copy = std::move(listener); }
        _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    auto accepted = test::accept_in_background(listener);
    Link link = connect(listener.address(), {}, soon());
    EXPECT_EQ(accepted.get().peer_now(), PeerState::alive);
}

TEST(Accept, PassesOverGarbageSilenceAndHangUps) {
    Listener listener = Listener::listen(fresh_address());
    const Stranger silent = Stranger::connect_to(listener.address());
    const Stranger browser = Stranger::connect_to(listener.address());
    browser.say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    { const Stranger gone = Stranger::connect_to(listener.address()); }
    const Stranger half = Stranger::connect_to(listener.address());
    const std::vector<std::byte> hello = encode(Hello{.service = "link"});
    half.say(std::span{hello}.first(20));
    const Stranger flood = Stranger::connect_to(listener.address());
    flood.say(std::string(1 << 20, 'x'));
    auto accepted = test::accept_in_background(listener);
    Link honest = connect(listener.address(), {}, soon());
    Link link = accepted.get();
    EXPECT_EQ(link.peer_now(), PeerState::alive);
    EXPECT_THAT(browser.hear_all(), HasSubstr("this looks like HTTP"));
}

TEST(Accept, ThrowsTheFirstFailureWhenAskedForOnePeer) {
    Listener listener = Listener::listen(fresh_address());
    const Stranger browser = Stranger::connect_to(listener.address());
    browser.say("GET / HTTP/1.1\r\n\r\n");
    const base::Error error = error_of([&] { (void)listener.accept_one(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    EXPECT_THAT(error.what(), HasSubstr("'GET / HT'"));
}

TEST(Accept, NamesBothVersionsToBothEnds) {
    Listener listener = Listener::listen(fresh_address());
    const Stranger other = Stranger::connect_to(listener.address());
    std::vector<std::byte> hello = encode(Hello{.service = "link"});
    hello[4] = std::byte{9};
    other.say(hello);
    const base::Error error = error_of([&] { (void)listener.accept_one(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::version_mismatch);
    const std::string told = other.hear_all();
    EXPECT_THAT(told, HasSubstr("it speaks protocol version 3, this build speaks 9"));
    EXPECT_THAT(error.what(), HasSubstr("the peer speaks protocol version 9, this build speaks 3"));
    EXPECT_EQ(told.substr(0, 4), "MLRC");
    EXPECT_EQ(told[4], 3) << "the header tells our version";
}

TEST(Accept, RefusesMessagesOutOfTurn) {
    Listener listener = Listener::listen(fresh_address());
    const Stranger other = Stranger::connect_to(listener.address());
    other.say(encode(Ready{}));
    const base::Error error = error_of([&] { (void)listener.accept_one(soon()); });
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    EXPECT_THAT(error.what(), HasSubstr("out of turn"));
}

TEST(Accept, SurvivesAQueuePairThatCannotBeConnected) {
    Listener listener = Listener::listen(fresh_address());
    // A peer of the right kind whose facts lead nowhere must fail alone.
    ChildProcess liar =
        ChildProcess::start("say_hello_and_leave", {listener.address().to_string()});
    EXPECT_TRUE(liar.wait().success());
    auto accepted = test::accept_in_background(listener);
    Link honest = connect(listener.address(), {}, soon());
    Link link = accepted.get();
    EXPECT_EQ(link.peer_now(), PeerState::alive);
}

MILLRACE_CHILD(say_hello_and_leave) {
    Stranger stranger = Stranger::connect_to(Address::parse(arguments.at(0)));
    Hello hello{.service = "link", .service_version = 1};
    hello.queue_pair.number = 0xfffffe;
    hello.soft = default_device_is_soft();
    hello.ethernet = !hello.soft;
    if (hello.soft) hello.fabric = printable(soft_fabric(), 512);
    hello.max_reads = 0;
    stranger.say(encode(hello));
    return 0;
}

TEST(Accept, KeepsAPeerThatHasNotYetSpokenForTheNextCall) {
    Listener listener = Listener::listen(fresh_address());
    auto connecting =
        std::async(std::launch::async, [&] { return connect(listener.address(), {}, soon()); });
    const auto none_in = [&](std::chrono::milliseconds time) {
        return error_of([&] { (void)listener.accept_speaking(within(time)); });
    };
    while (connecting.wait_for(0s) != std::future_status::ready) {
        EXPECT_EQ(none_in(1ms).code(), ErrorCode::timed_out);
    }
    EXPECT_THAT(none_in(10ms).what(), HasSubstr("one peer was still in the handshake"));
    Link link = connecting.get();
    auto answer =
        std::async(std::launch::async, [&] { return link.exchange(bytes("mine"), soon()); });
    Link accepted = listener.accept_speaking(soon());
    EXPECT_EQ(test::text(accepted.exchange(bytes("theirs"), base::Deadline::now())), "mine");
    EXPECT_EQ(test::text(answer.get()), "theirs");
}

TEST(Accept, PassesOverAPeerThatLeavesBeforeItSpeaks) {
    Listener listener = Listener::listen(fresh_address());
    auto connecting =
        std::async(std::launch::async, [&] { (void)connect(listener.address(), {}, soon()); });
    std::string what;
    const bool found = test::eventually([&] {
        what = error_of([&] { (void)listener.accept_speaking(within(1ms)); }).what();
        return what.find("left before it said what it wants") != std::string::npos;
    });
    connecting.get();
    EXPECT_TRUE(found) << what;
}

TEST(Accept, ServesManyPeersThatComeAtOnce) {
    constexpr int count = 16;
    Listener listener = Listener::listen(fresh_address());
    std::vector<std::future<Link>> connecting;
    for (int i = 0; i < count; ++i) {
        connecting.push_back(std::async(std::launch::async,
                                        [&] { return connect(listener.address(), {}, soon()); }));
    }
    std::vector<Link> accepted;
    for (int i = 0; i < count; ++i) accepted.push_back(listener.accept(soon()));
    for (auto& one : connecting) EXPECT_EQ(one.get().peer_now(), PeerState::alive);
}

TEST(Listen, RefusesAnAddressInUse) {
    for (const Address& where : {Address::parse("127.0.0.1:0"), fresh_address()}) {
        Listener listener = Listener::listen(where);
        const base::Error error = error_of([&] { (void)Listener::listen(listener.address()); });
        EXPECT_THAT(error.what(), HasSubstr("another process listens there")) << where.to_string();
    }
}

class UnixPath : public testing::Test {
  protected:
    [[nodiscard]] std::string path() const { return folder_.path("socket"); }
    [[nodiscard]] Address address() const { return Address::unix_socket(path()); }
    [[nodiscard]] bool exists() const {
        struct stat file {};
        return lstat(path().c_str(), &file) == 0;
    }

  private:
    millrace::test::TemporaryFolder folder_;
};

TEST_F(UnixPath, IsRemovedWithItsListener) {
    {
        Listener listener = Listener::listen(address());
        EXPECT_TRUE(exists());
    }
    EXPECT_FALSE(exists());
}

TEST_F(UnixPath, IsTakenOverFromAListenerThatWasKilled) {
    ChildProcess child = ChildProcess::start("accept_for_ever", {address().to_string()});
    ASSERT_EQ(child.read_line(), "listening");
    child.kill_and_wait();
    ASSERT_TRUE(exists()) << "the killed listener could not remove it";
    Listener listener = Listener::listen(address());
    auto accepted = test::accept_in_background(listener);
    Link link = connect(address(), {}, soon());
    (void)accepted.get();
}

TEST_F(UnixPath, IsLeftToTheOneWhoListensOnIt) {
    Listener listener = Listener::listen(address());
    const base::Error error = error_of([&] { (void)Listener::listen(address()); });
    EXPECT_THAT(error.what(), HasSubstr("another process listens there"));
    EXPECT_TRUE(exists());
}

TEST_F(UnixPath, IsNeverTakenFromAFileThatIsNoSocket) {
    std::ofstream{path()} << "precious";
    const base::Error error = error_of([&] { (void)Listener::listen(address()); });
    EXPECT_THAT(error.what(), HasSubstr("not a socket"));
    std::string content;
    std::ifstream{path()} >> content;
    EXPECT_EQ(content, "precious");
}

TEST_F(UnixPath, OfAnotherListenerIsNotRemovedByTheFirst) {
    auto first = std::make_optional(Listener::listen(address()));
    std::remove(path().c_str());
    Listener second = Listener::listen(address());
    first.reset();
    EXPECT_TRUE(exists());
}

TEST(Options, ThatCannotWorkAreRefused) {
    const std::string newline = "two\nlines";
    for (const LinkOptions& options :
         {LinkOptions{.service = ""}, LinkOptions{.service = std::string(65, 'a')},
          LinkOptions{.service = newline}, LinkOptions{.max_send_requests = 0}}) {
        EXPECT_EQ(error_of([&] { (void)Listener::listen(fresh_address(), options); }).code(),
                  ErrorCode::invalid_argument);
        EXPECT_EQ(error_of([&] { (void)connect(fresh_address(), options, within(10ms)); }).code(),
                  ErrorCode::invalid_argument);
    }
}

}  // namespace
}  // namespace millrace::connect
