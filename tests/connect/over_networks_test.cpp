// Links by the soft device's wire between network namespaces, whose cables and addresses come and
// go: one host that two others are connected to, of which the first one's is struck. Needs root.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <list>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/clock.hpp"
#include "peers.hpp"
#include "support/child_process.hpp"

namespace millrace::connect {
namespace {

using millrace::test::ChildProcess;
using testing::HasSubstr;

/// A network namespace, while the process lives that holds it.
class Network {
  public:
    Network() : holder_{ChildProcess::start("hold_network")} {
        EXPECT_EQ(holder_.read_line(), "made");
    }
    [[nodiscard]] pid_t pid() const noexcept { return holder_.pid(); }
    [[nodiscard]] std::string path() const { return fmt::format("/proc/{}/ns/net", pid()); }
    /// iproute2's `ip` in it.
    void ip(const std::string& arguments) const {
        const std::string line = fmt::format("nsenter --net={} ip {}", path(), arguments);
        EXPECT_EQ(std::system(line.c_str()), 0) << line;
    }

  private:
    ChildProcess holder_;
};

/// A process that has links, and does with them what it is told to: see `obey`.
class Actor {
  public:
    Actor(std::string_view child, const Network& network, const std::string& address)
        : process{ChildProcess::start(child, {network.path(), address}, {"MILLRACE_WIRE="})} {}
    std::string asked(const std::string& words) {
        EXPECT_TRUE(process.write_line(words));
        return heard();
    }
    std::string heard() { return process.read_line().value_or("silence"); }
    ChildProcess process;
};

/// The addresses of the three hosts.
struct Family {
    const char* name;
    std::string middle, first, second;
    std::string network;  ///< bits of the address that they share
    std::string option;   ///< of `ip addr add`: nobody else has an IPv6 address, so none waits
};
void PrintTo(const Family& family, std::ostream* stream) { *stream << family.name; }
const Family ipv4{"IPv4", "10.77.0.1", "10.77.0.2", "10.77.0.3", "/24", ""};
const Family ipv6{"IPv6", "fd77::1", "fd77::2", "fd77::3", "/64", " nodad"};

/// The middle with a cable to the first and another one to the second. Nobody sets anything: the
/// wire is turned on by the first peer.
class OverNetworks : public testing::TestWithParam<Family> {
  protected:
    static std::string add(const std::string& address, const char* interface) {
        return fmt::format("addr add {}{} dev {}{}", address, GetParam().network, interface,
                           GetParam().option);
    }
    static std::string remove_first() {
        return fmt::format("addr del {}{} dev cable", GetParam().first, GetParam().network);
    }
    static bool has_ipv6() { return GetParam().name == ipv6.name; }
    /// With its address, which the kernel takes from an interface that is down, if it is IPv6.
    void mend_cable() const {
        networks_->first.ip("link set cable up");
        if (has_ipv6()) networks_->first.ip(add(GetParam().first, "cable"));
    }

    void SetUp() override {
        if (geteuid() != 0) GTEST_SKIP() << "needs root, to make network namespaces";
        networks_.emplace();
        const Network& middle = networks_->middle;
        for (const auto& [network, cable, address] :
             {std::tuple{&networks_->first, "to-first", GetParam().first},
              {&networks_->second, "to-second", GetParam().second}}) {
            middle.ip(fmt::format("link add {} type veth peer name cable netns {}", cable,
                                  network->pid()));
            middle.ip(fmt::format("link set {} up", cable));
            network->ip("link set lo up");
            network->ip(add(address, "cable"));
            network->ip("link set cable up");
        }
        middle.ip("link set lo up");
        const Family& family = GetParam();
        middle.ip(add(family.middle, "to-first"));
        // The second asks on its own cable who has the address.
        if (has_ipv6()) middle.ip(fmt::format("addr add {} dev to-second nodad", family.middle));
        middle.ip(fmt::format("route add {} dev to-second src {}", family.second, family.middle));
        server_.emplace("serve_networks", middle,
                        has_ipv6() ? "[" + family.middle + "]:0" : family.middle + ":0");
        const std::string address = server_->heard();
        first_.emplace("join_network", networks_->first, address);
        ASSERT_EQ(server_->heard(), "connected");
        second_.emplace("join_network", networks_->second, address);
        ASSERT_EQ(server_->heard(), "connected");
        ASSERT_EQ(first_->heard(), "connected");
        ASSERT_EQ(second_->heard(), "connected");
    }
    void expect_second_goes_on() {
        EXPECT_EQ(server_->asked("write 1"), "posted");
        EXPECT_EQ(server_->asked("outcome 1"), "ok");
        EXPECT_EQ(second_->asked("write 0"), "posted");
        EXPECT_EQ(second_->asked("outcome 0"), "ok");
    }
    /// Requests of both ends are on their way between `strike` and `mend`, which follow each other
    /// at once.
    template <class Mend>
    void expect_to_outlast(const std::string& strike, const Mend& mend) {
        const Network& network = networks_->first;
        for (int round = 0; round < 10; ++round) {
            const auto begun = base::Clock::now();
            network.ip(strike);
            EXPECT_EQ(server_->asked("write 0"), "posted");
            EXPECT_EQ(first_->asked("write 0"), "posted");
            expect_second_goes_on();
            mend();
            const std::string here = server_->asked("outcome 0");
            const std::string there = first_->asked("outcome 0");
            if (here == "ok" && there == "ok") return expect_second_goes_on();
            // A machine so busy that it was out for longer than the retries last.
            ASSERT_GT(base::Clock::now() - begun, std::chrono::seconds{2}) << here << '\n' << there;
            TearDown();
            SetUp();
        }
        ADD_FAILURE() << "it was never mended within two seconds";
    }
    /// The connection to it ends, at both ends, and others go on.
    void expect_to_end_by(const std::string& strike) {
        networks_->first.ip(strike);
        EXPECT_EQ(server_->asked("write 0"), "posted");
        EXPECT_EQ(first_->asked("write 0"), "posted");
        expect_second_goes_on();
        EXPECT_THAT(server_->asked("outcome 0"), HasSubstr("transport retries"));
        EXPECT_THAT(first_->asked("outcome 0"), HasSubstr("transport retries"));
        expect_second_goes_on();
    }
    void TearDown() override {
        server_.reset();
        first_.reset();
        second_.reset();
        networks_.reset();
    }

    struct Networks {
        Network middle, first, second;
    };
    std::optional<Networks> networks_;
    std::optional<Actor> server_, first_, second_;
};

TEST_P(OverNetworks, ALinkOutlastsAnInterfaceThatIsDownForAMoment) {
    expect_to_outlast("link set cable down", [&] { mend_cable(); });
}

TEST_P(OverNetworks, ALinkOutlastsAnAddressThatIsAwayForAMoment) {
    expect_to_outlast(remove_first(), [&] { networks_->first.ip(add(GetParam().first, "cable")); });
}

TEST_P(OverNetworks, AnInterfaceThatStaysDownEndsItsConnectionAlone) {
    expect_to_end_by("link set cable down");
}

TEST_P(OverNetworks, AnAddressThatIsRemovedEndsItsConnectionAlone) {
    expect_to_end_by(remove_first());
}

TEST_P(OverNetworks, ANewConnectionIsMadeOnceTheInterfaceIsBack) {
    expect_to_end_by("link set cable down");
    mend_cable();
    Actor again{"join_network", networks_->first, server_->asked("address")};
    EXPECT_EQ(server_->heard(), "connected");
    EXPECT_EQ(again.heard(), "connected");
    EXPECT_EQ(again.asked("write 0"), "posted");
    EXPECT_EQ(again.asked("outcome 0"), "ok");
}

// With MILLRACE_TEST_LONG half a minute; else until its end is known, which is what counts.
TEST_P(OverNetworks, AStoppedPeerHearsOfTheEndOnceItGoesOn) {
    const auto stopped_for = std::chrono::seconds{std::getenv("MILLRACE_TEST_LONG") ? 30 : 0};
    ASSERT_TRUE(first_->process.stop());
    const auto begun = base::Clock::now();
    EXPECT_EQ(server_->asked("write 0"), "posted");
    EXPECT_THAT(server_->asked("outcome 0"), HasSubstr("transport retries"));
    do {
        expect_second_goes_on();
    } while (base::Clock::now() - begun < stopped_for);
    EXPECT_EQ(server_->asked("leave 0"), "left");
    first_->process.resume();
    EXPECT_EQ(first_->asked("peer 0"), "gone");
    expect_second_goes_on();
}

INSTANTIATE_TEST_SUITE_P(Families, OverNetworks, testing::Values(ipv4, ipv6),
                         [](const auto& family) { return family.param.name; });

MILLRACE_CHILD(hold_network) {
    if (::unshare(CLONE_NEWNET) != 0) return 1;
    millrace::test::say("made");
    (void)millrace::test::hear();
    return 0;
}

/// An end, and what the peer may write to.
struct End {
    explicit End(Link connected)
        : link{std::move(connected)}, memory{link.allocate(4096, verbs::Access::remote_write)} {
        const verbs::RemoteAddress own = memory.remote();
        const auto answer = link.exchange(std::as_bytes(std::span{&own, 1}), test::soon());
        std::memcpy(&peer, answer.data(), sizeof peer);
    }
    Link link;
    verbs::RegisteredBuffer memory;
    verbs::RemoteAddress peer;
};

/// write N      posts a WRITE over link N              posted
/// outcome N    waits for its completion               ok; or what that says
/// peer N       waits until the peer is gone           gone
/// leave N      lets go of the link                    left
/// address      says where it listens, and accepts
int obey(std::list<std::optional<End>>& ends, Listener* listener) {
    using millrace::test::say;
    while (const auto words = millrace::test::hear()) {
        if (*words == "address") {
            say(listener->address().to_string());
            ends.emplace_back(std::in_place, listener->accept_one(test::soon()));
            say("connected");
            continue;
        }
        const auto at = words->find(' ');
        std::optional<End>& end = *std::next(ends.begin(), std::stoi(words->substr(at + 1)));
        const std::string what = words->substr(0, at);
        if (what == "write") {
            const std::uint64_t value = 1;
            const ibv_sge from{reinterpret_cast<std::uint64_t>(&value), sizeof value, 0};
            const int error = end->link.queue_pair().post(
                verbs::Write{.from = {&from, 1},
                             .to = end->peer,
                             .flags = verbs::SendFlags::inlined | verbs::SendFlags::signaled});
            say(error == 0 ? "posted" : "refused");
        } else if (what == "outcome") {
            verbs::Completion done{};
            const bool came = test::eventually([&] {
                return end->link.send_queue().poll({&done, 1}) == 1;
            });
            say(!came ? "nothing came" : done.ok() ? "ok" : done.explain());
        } else if (what == "peer") {
            const bool gone =
                test::eventually([&] { return end->link.peer_now() != PeerState::alive; });
            say(gone ? "gone" : "there");
        } else {
            end.reset();
            say("left");
        }
    }
    return 0;
}

[[nodiscard]] LinkOptions options_within(const std::string& network) {
    const int space = ::open(network.c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) std::abort();
    ::close(space);
    return {.endpoint = Endpoint::open("soft0")};
}

MILLRACE_CHILD(serve_networks) {
    const LinkOptions options = options_within(arguments.at(0));
    Listener listener = Listener::listen(Address::parse(arguments.at(1)), options);
    millrace::test::say(listener.address().to_string());
    std::list<std::optional<End>> ends;
    while (ends.size() < 2) {
        ends.emplace_back(std::in_place, listener.accept_one(test::soon()));
        millrace::test::say("connected");
    }
    return obey(ends, &listener);
}

MILLRACE_CHILD(join_network) {
    const LinkOptions options = options_within(arguments.at(0));
    std::list<std::optional<End>> ends;
    ends.emplace_back(std::in_place,
                      connect(Address::parse(arguments.at(1)), options, test::soon()));
    millrace::test::say("connected");
    return obey(ends, nullptr);
}

}  // namespace
}  // namespace millrace::connect
