// The RESP door where there is no memory, and how much it asks for: what its thread takes of new is
// seen here, and refused.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "doors/output.hpp"
#include "doors/resp_client.hpp"

namespace {

constexpr std::size_t large = std::size_t{64} << 10;
std::atomic<std::size_t> refused_from{~std::size_t{0}};
std::atomic<std::size_t> taken_by_large{0};

}  // namespace

void* operator new(std::size_t size) {
    if (size >= refused_from.load(std::memory_order_relaxed)) throw std::bad_alloc{};
    if (size >= large) taken_by_large.fetch_add(size, std::memory_order_relaxed);
    void* const memory = std::malloc(size == 0 ? 1 : size);
    if (memory == nullptr) throw std::bad_alloc{};
    return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace millrace::kv {
namespace {

TEST(RespMemory, GivesNobodyAnothersAnswersWhereThereIsNone) {
    DoorServing serving;
    RawClient first{serving};
    RawClient second{serving};
    ASSERT_EQ(first.ask({"set", "secret", "the first one's"}), "+OK\r\n");
    ASSERT_EQ(first.ask({"set", "large", std::string(200'000, 'v')}), "+OK\r\n");
    ASSERT_EQ(second.ask({"ping"}), "+PONG\r\n");
    const std::string both = request_of({"get", "secret"}) + request_of({"get", "large"});
    refused_from = 150'000;
    const bool is_sent = first.send(both);
    const bool is_closed = serving.counts([](const DoorStats& stats) { return stats.greedy == 1; });
    refused_from = ~std::size_t{0};
    ASSERT_TRUE(is_sent && is_closed);
    EXPECT_EQ(second.ask({"ping"}), "+PONG\r\n");
}

TEST(RespMemory, OfAnswersGoesOnceTheyAre) {
    Output output;
    output.bytes().assign(std::size_t{1} << 20, 'v');
    output.bytes().clear();
    output.trim();
    EXPECT_LT(output.held(), std::size_t{1024});
}

TEST(RespMemory, IsTakenForARequestAsItGrows) {
    DoorServing serving;
    RawClient client{serving};
    Words words{"mset"};
    for (int i = 0; i < 100'000; ++i) {
        words.push_back("key:" + std::to_string(i % 10));
        words.push_back("a value of twenty");
    }
    const std::string request = request_of(words);
    taken_by_large = 0;
    ASSERT_EQ(client.ask(words), "+OK\r\n");
    // Its memory grows by a part of what it has, the places of its words likewise.
    EXPECT_LT(taken_by_large, 20 * request.size());
}

}  // namespace
}  // namespace millrace::kv
