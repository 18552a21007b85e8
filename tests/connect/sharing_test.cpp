// Listeners of several threads that share one address: who gets whom, what is refused, and what is
// left when one of them goes.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/connect/hub.hpp"
#include "peers.hpp"
#include "support/readable.hpp"
#include "support/temporary_folder.hpp"

namespace millrace::connect::test {
namespace {

/// Listeners at one address, all looked at by this thread, and what they have accepted.
class House {
  public:
    explicit House(std::size_t count, LinkOptions options = {},
                   const Address& where = fresh_address())
        : listeners{Listener::listen_together(where, std::vector<LinkOptions>(count, options))},
          links(count) {}

    /// Connects, while all listeners are looked at. The number of the one that has it then.
    std::size_t add(LinkOptions options = {}) {
        auto coming = std::async(std::launch::async, [&] {
            return connect(listeners.front().address(), options, soon());
        });
        std::optional<std::size_t> whose;
        EXPECT_TRUE(eventually([&] {
            for (std::size_t i = 0; i < listeners.size(); ++i) {
                if (gone.contains(i)) continue;
                while (auto link = listeners[i].try_accept()) {
                    links[i].push_back(std::move(*link));
                    whose = i;
                }
            }
            return whose.has_value();
        }));
        peers.push_back(coming.get());
        return whose.value_or(listeners.size());
    }
    [[nodiscard]] static LinkOptions asking_for(std::uint32_t listener) {
        LinkOptions options;
        options.listener = listener;
        return options;
    }

    std::vector<Listener> listeners;
    std::map<std::size_t, int> gone;
    std::vector<std::vector<Link>> links;
    std::vector<Link> peers;
};

TEST(SharedAddress, GivesEachListenerAsManyPeersAsTheOthers) {
    House house{3};
    for (int i = 0; i < 9; ++i) (void)house.add();
    for (const auto& links : house.links) EXPECT_EQ(links.size(), 3U);
    // Whose peers have left is given the next ones.
    house.links[1].clear();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(house.add(), 1U);
    EXPECT_EQ(house.listeners[0].given().clients, 9U) << "of all together";
}

TEST(SharedAddress, GivesPeersToTheListenerThatTheyAskFor) {
    House house{3};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(house.add(House::asking_for(2)), 2U);
    EXPECT_NE(house.add(House::asking_for(3)), 2U) << "there is none of that number";
    EXPECT_NE(house.add(), 2U);
}

TEST(SharedAddress, CarriesWhatItsEndsSay) {
    House house{2};
    for (int i = 0; i < 4; ++i) {
        const std::size_t whose = house.add();
        house.peers.back().say(bytes("hello"));
        EXPECT_EQ(text(house.links[whose].back().hear(soon())), "hello");
    }
}

TEST(SharedAddress, IsGuardedByOneSecretAndOneBudget) {
    LinkOptions options;
    options.admission.secret = Secret{"sixteen bytes or more of it"};
    options.admission.budget.clients = 3;
    House house{2, options};
    for (int i = 0; i < 3; ++i) {
        LinkOptions who = options;
        who.listener = 1;
        EXPECT_EQ(house.add(who), 1U);
    }
    std::atomic<bool> over{false};
    std::thread looking{[&] {
        while (!over) {
            for (Listener& one : house.listeners) EXPECT_FALSE(one.try_accept().has_value());
        }
    }};
    const base::Error full =
        error_of([&] { (void)connect(house.listeners[0].address(), options, soon()); });
    EXPECT_EQ(full.code(), base::ErrorCode::refused);
    LinkOptions wrong;
    wrong.admission.secret = Secret{"another secret of those bytes"};
    const base::Error stranger =
        error_of([&] { (void)connect(house.listeners[0].address(), wrong, soon()); });
    EXPECT_EQ(stranger.code(), base::ErrorCode::refused);
    over = true;
    looking.join();
}

TEST(SharedAddress, OutlivesListenersThatGo) {
    House house{3};
    { const Listener ended = std::move(house.listeners[1]); }
    house.gone[1] = 1;
    for (int i = 0; i < 4; ++i) EXPECT_NE(house.add(), 1U);
    EXPECT_NE(house.add(House::asking_for(1)), 1U) << "it is not there any more";
}

TEST(SharedAddress, IsThereUntilTheLastListenerHasGone) {
    const millrace::test::TemporaryFolder folder;
    const std::string path = folder.path("socket");
    const auto is_there = [&] {
        struct stat file {};
        return lstat(path.c_str(), &file) == 0;
    };
    auto house = std::make_unique<House>(2, LinkOptions{}, Address::unix_socket(path));
    { const Listener ended = std::move(house->listeners[0]); }
    EXPECT_TRUE(is_there());
    house.reset();
    EXPECT_FALSE(is_there());
}

TEST(SharedAddress, LetsGoOfPeersWhoseListenerGoes) {
    auto listeners = Listener::listen_together(fresh_address(), std::vector<LinkOptions>(2));
    auto coming = std::async(std::launch::async, [address = listeners[0].address()] {
        return error_of([&] { (void)connect(address, House::asking_for(1), soon()); });
    });
    // The first hears it, and hands it to the second, which never looks.
    EXPECT_TRUE(eventually([&] {
        EXPECT_FALSE(listeners[0].try_accept().has_value());
        return millrace::test::is_readable(listeners[1].descriptor()) &&
               !millrace::test::is_readable(listeners[0].descriptor());
    }));
    { const Listener ended = std::move(listeners[1]); }
    EXPECT_EQ(coming.get().code(), base::ErrorCode::peer_lost);
}

TEST(SharedAddress, IsServedByThreadsThatSleep) {
    constexpr std::size_t threads = 3;
    constexpr int peers = 60;
    auto listeners = Listener::listen_together(fresh_address(), std::vector<LinkOptions>(threads));
    const Address address = listeners[0].address();
    std::array<std::vector<Link>, threads> links;
    std::array<Hub, threads> hubs;
    std::atomic<int> accepted{0};
    std::vector<std::thread> serving;
    for (std::size_t i = 0; i < threads; ++i) {
        serving.emplace_back([&, i] {
            hubs[i].adopt();
            const auto id = hubs[i].add(listeners[i].descriptor(), [&] {
                while (auto link = listeners[i].try_accept()) {
                    links[i].push_back(std::move(*link));
                    ++accepted;
                }
            });
            EXPECT_EQ(hubs[i].run(soon()), base::Status::closed);
            hubs[i].remove(id);
        });
    }
    std::vector<Link> ends;
    for (int i = 0; i < peers; ++i) ends.push_back(connect(address, LinkOptions{}, soon()));
    EXPECT_TRUE(eventually([&] { return accepted == peers; }));
    for (Hub& hub : hubs) hub.stop();
    for (std::thread& one : serving) one.join();
    for (const auto& own : links) EXPECT_EQ(own.size(), peers / threads);
}

TEST(SharedAddress, IsForOneTo256Listeners) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{257}}) {
        const base::Error error = error_of([&] {
            (void)Listener::listen_together(fresh_address(), std::vector<LinkOptions>(count));
        });
        EXPECT_EQ(error.code(), base::ErrorCode::invalid_argument);
    }
}

}  // namespace
}  // namespace millrace::connect::test
