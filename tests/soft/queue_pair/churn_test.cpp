// Peers that come and go, and register and deregister for ever, leave nothing behind here: neither
// mappings nor descriptors.
#include <cstdint>
#include <memory>

#include "soft/remote_endpoint.hpp"
#include "support/resources.hpp"

namespace millrace::test {
namespace {

/// A sealed memfd, registered; both go with it.
struct FreshMemory {
    explicit FreshMemory(ibv_pd* pd) : descriptor{memfd_create("fresh", MFD_ALLOW_SEALING)} {
        EXPECT_EQ(ftruncate(descriptor, bytes), 0);
        fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK);
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        mr = soft::reg_mr(pd, memory, bytes, reinterpret_cast<std::uint64_t>(memory),
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    }
    ~FreshMemory() {
        EXPECT_EQ(soft::dereg_mr(mr), 0);
        munmap(memory, bytes);
        close(descriptor);
    }
    FreshMemory(const FreshMemory&) = delete;
    FreshMemory& operator=(const FreshMemory&) = delete;

    static constexpr std::size_t bytes = 8192;
    int descriptor;
    void* memory;
    ibv_mr* mr;
};

/// Without a buffer that leaves its descriptor open.
EndpointOptions tidy(bool events) {
    EndpointOptions options;
    options.events = events;
    options.shared_memory = false;
    return options;
}

// Answers "fresh" with other memory, and "reopen" with another end, of another node unless told to
// keep one.
MILLRACE_CHILD(soft_churner) {
    const EndpointOptions options = tidy(true);
    std::unique_ptr<Endpoint> kept;
    if (!arguments.empty()) {
        kept = std::make_unique<Endpoint>(options);
        say(std::to_string(kept->qp->qp_num));
    }
    auto end = std::make_unique<Endpoint>(options);
    std::unique_ptr<FreshMemory> fresh;
    say(std::to_string(end->qp->qp_num));
    while (const auto line = hear()) {
        std::istringstream words{*line};
        std::string verb;
        std::uint32_t number = 0;
        words >> verb >> number;
        if (verb == "keep") {
            say(std::to_string(kept->connect(number)));
        } else if (verb == "connect") {
            say(std::to_string(end->connect(number)));
        } else if (verb == "fresh") {
            fresh.reset();
            fresh = std::make_unique<FreshMemory>(end->pd);
            say(std::to_string(reinterpret_cast<std::uint64_t>(fresh->memory)) + ' ' +
                std::to_string(fresh->mr->rkey));
        } else if (verb == "written") {
            say(*static_cast<std::uint64_t*>(fresh->memory) == number ? "yes" : "no");
        } else if (verb == "reopen") {
            fresh.reset();
            end.reset();
            end = std::make_unique<Endpoint>(options);
            say(std::to_string(end->qp->qp_num));
        } else if (verb == "armed") {  // a queue pair here that rings for its receives
            const int error = end->receive(1, 0, 64);
            say(std::to_string(error != 0 ? error : ibv_req_notify_cq(end->cq, 0)));
        }
    }
    fresh.reset();
    return 0;
}

/// Polls until `count()` is at most `limit`; what collects does it by the clock.
template <class Count>
std::size_t settles_at(Endpoint& end, std::size_t limit, Count count) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (count() > limit && std::chrono::steady_clock::now() < until) {
        EXPECT_FALSE(end.poll_once());
        usleep(1000);
    }
    return count();
}

int cycles() { return std::getenv("MILLRACE_TEST_LONG") != nullptr ? 20000 : 600; }

TEST(Churn, OfThePeersRegionsKeepsMappingsAndDescriptorsBounded) {
    Endpoint end{tidy(false)};
    ChildProcess peer = ChildProcess::start("soft_churner");
    const auto number = static_cast<std::uint32_t>(std::stoul(peer.read_line().value_or("0")));
    ASSERT_EQ(end.connect(number), 0);
    peer.write_line("connect " + std::to_string(end.qp->qp_num));
    ASSERT_EQ(peer.read_line(), "0");
    const std::size_t mappings_before = shared_mappings();
    const std::size_t descriptors_before = open_descriptors();
    for (int i = 0; i < cycles(); ++i) {
        peer.write_line("fresh");
        std::istringstream line{peer.read_line().value_or("")};
        std::uint64_t address = 0;
        std::uint32_t key = 0;
        line >> address >> key;
        const std::uint64_t value = 1000 + static_cast<std::uint64_t>(i);
        std::memcpy(end.memory, &value, sizeof value);
        ASSERT_EQ(end.write(1, 0, sizeof value, address, key), 0);
        const auto wc = end.complete();
        ASSERT_TRUE(wc);
        ASSERT_EQ(wc->status, IBV_WC_SUCCESS);
        if (i % 50 == 0) {
            peer.write_line("written " + std::to_string(value));
            ASSERT_EQ(peer.read_line(), "yes");
        }
    }
    EXPECT_LE(settles_at(end, mappings_before + 8, shared_mappings), mappings_before + 8);
    EXPECT_LE(settles_at(end, descriptors_before, open_descriptors), descriptors_before);
}

void come_and_go(bool one_node) {
    // Something of this process stays open and polled throughout, connected to a peer that stays.
    RemotePair other{tidy(true)};
    Endpoint staying{tidy(false)};
    ChildProcess peer = ChildProcess::start(
        "soft_churner", one_node ? std::vector<std::string>{"keep"} : std::vector<std::string>{});
    const auto number_from_peer = [&] {
        return static_cast<std::uint32_t>(std::stoul(peer.read_line().value_or("0")));
    };
    if (one_node) {
        ASSERT_EQ(staying.connect(number_from_peer()), 0);
        peer.write_line("keep " + std::to_string(staying.qp->qp_num));
    }
    std::uint32_t number = number_from_peer();
    if (one_node) {
        ASSERT_EQ(peer.read_line(), "0") << "it could not connect";
    }
    const auto cycle = [&](bool destroy_first) {
        Endpoint end{tidy(false)};
        ASSERT_EQ(end.connect(number), 0);
        peer.write_line("connect " + std::to_string(end.qp->qp_num));
        ASSERT_EQ(peer.read_line(), "0");
        peer.write_line("armed");
        ASSERT_EQ(peer.read_line(), "0");
        peer.write_line("fresh");
        std::istringstream line{peer.read_line().value_or("")};
        std::uint64_t address = 0;
        std::uint32_t key = 0;
        line >> address >> key;
        ASSERT_EQ(end.write(1, 0, 8, address, key), 0);
        ASSERT_TRUE(end.complete());
        ASSERT_EQ(end.send(2, 0, 8), 0);  // rings
        ASSERT_TRUE(end.complete());
        if (destroy_first) {
            ASSERT_EQ(soft::destroy_qp(end.qp), 0);
            end.qp = nullptr;
        }
        peer.write_line("reopen");
        number = number_from_peer();
        ASSERT_NE(number, 0U);
    };
    for (int i = 0; i < 20; ++i) cycle(i % 2 == 0);
    const std::size_t mappings_before = shared_mappings();
    const std::size_t descriptors_before = open_descriptors();
    const int total = cycles();
    for (int i = 0; i < total; ++i) {
        cycle(i % 2 == 0);
        if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_LE(settles_at(staying, mappings_before + 8, shared_mappings), mappings_before + 8);
    EXPECT_LE(settles_at(staying, descriptors_before + 2, open_descriptors),
              descriptors_before + 2);
}

TEST(Churn, OfPeersThatOpenAndCloseTheDeviceKeepsMappingsAndDescriptorsBounded) {
    come_and_go(false);
}

TEST(Churn, OfAPeersQueuePairsAndChannelsKeepsMappingsAndDescriptorsBounded) { come_and_go(true); }

}  // namespace
}  // namespace millrace::test
