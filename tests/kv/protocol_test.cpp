// How requests and answers of the key-value protocol lie in memory, and what is refused.
#include "millrace/kv/protocol.hpp"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "millrace/kv/client.hpp"
#include "serving.hpp"
#include "stores.hpp"

namespace millrace::kv {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> written(const RequestParts& parts) {
    std::vector<std::byte> request(size_of(parts));
    write(parts, request);
    return request;
}

TEST(KvProtocol, ReadsWhatItWrites) {
    for (const bool version : {false, true}) {
        for (const bool expires : {false, true}) {
            RequestParts parts{.key = bytes("a key"), .value = bytes("and its value")};
            if (version) parts.options.if_version = 0x1234567890U;
            if (expires) parts.options.expires_after = 1500ms;
            const auto request = written(parts);
            const auto read = parse_request(request);
            ASSERT_TRUE(read.has_value());
            EXPECT_EQ(text(read->key), "a key");
            EXPECT_EQ(text(read->value), "and its value");
            EXPECT_EQ(read->options.if_version, parts.options.if_version);
            EXPECT_EQ(read->options.expires_after, parts.options.expires_after);
        }
    }
}

TEST(KvProtocol, HasPlaceForTheLongestItem) {
    const std::vector<std::byte> key(longest_key, std::byte{1});
    const std::vector<std::byte> value(longest_value, std::byte{2});
    const RequestParts parts{
        .key = key, .value = value, .options = {.if_version = 1, .expires_after = 1h}};
    EXPECT_EQ(size_of(parts), longest_request);
    const auto request = written(parts);
    const auto read = parse_request(request);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->key.size(), longest_key);
    EXPECT_EQ(read->value.size(), longest_value);
}

TEST(KvProtocol, LetsTheShortestTimeExpire) {
    const auto request = written({.key = bytes("k"), .options = {.expires_after = 1ns}});
    const auto read = parse_request(request);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->options.expires_after, 1us) << "at once, and not never";
}

TEST(KvProtocol, BringsNoTimeAndLessAsNoTime) {
    for (const std::chrono::nanoseconds none :
         {0ns, -1ns, -1'000'000'000ns, std::chrono::nanoseconds::min()}) {
        const auto request = written({.key = bytes("k"), .options = {.expires_after = none}});
        const auto read = parse_request(request);
        ASSERT_TRUE(read.has_value());
        EXPECT_EQ(read->options.expires_after, 0us) << none.count();
    }
}

TEST(KvProtocol, TakesACenturyForNever) {
    auto request = written({.key = bytes("k"), .options = {.expires_after = 1us}});
    const std::uint64_t most = ~std::uint64_t{0};
    std::memcpy(request.data() + request_head_bytes, &most, sizeof most);
    const auto read = parse_request(request);
    ASSERT_TRUE(read.has_value());
    EXPECT_FALSE(read->options.expires_after.has_value());
}

TEST(KvProtocol, RefusesEveryOtherLength) {
    const auto request = written({.key = bytes("key"),
                                  .value = bytes("value"),
                                  .options = {.if_version = 7, .expires_after = 1s}});
    for (std::size_t length = 0; length < request.size(); ++length) {
        EXPECT_FALSE(parse_request(std::span{request}.first(length)).has_value()) << length;
    }
    auto longer = request;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(parse_request(longer).has_value());
}

TEST(KvProtocol, RefusesBitsThatMeanNothing) {
    const auto request = written({.key = bytes("key"), .value = bytes("value")});
    for (unsigned bit = 2; bit < 16; ++bit) {
        auto changed = request;
        changed[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
        EXPECT_FALSE(parse_request(changed).has_value()) << bit;
    }
}

TEST(KvProtocol, ReadsAnswers) {
    const std::uint64_t word = pack({Code::conflict, largest_version});
    std::vector<std::byte> payload(sizeof word + 3, std::byte{'x'});
    std::memcpy(payload.data(), &word, sizeof word);
    std::span<const std::byte> rest;
    const auto head = parse_answer(payload, rest);
    ASSERT_TRUE(head.has_value());
    EXPECT_EQ(head->code, Code::conflict);
    EXPECT_EQ(head->version, largest_version);
    EXPECT_EQ(text(rest), "xxx");
    EXPECT_FALSE(parse_answer(std::span{payload}.first(7), rest).has_value());
    payload[0] = static_cast<std::byte>(Code::unanswered);
    EXPECT_FALSE(parse_answer(payload, rest).has_value());
}

TEST(KvProtocol, NamesEveryCodeAsTheWorkDoes) {
    EXPECT_EQ(name_of(Code::ok), "OK");
    EXPECT_EQ(name_of(Code::key_error), "KEY_ERROR");
    EXPECT_EQ(name_of(Code::parsing_error), "PARSING_ERROR");
    EXPECT_EQ(name_of(Code::store_error), "STORE_ERROR");
    EXPECT_EQ(name_of(Code::setopt_error), "SETOPT_ERROR");
    EXPECT_EQ(name_of(Code::unknown_error), "UNK_ERROR");
}

TEST(KvProtocol, ReadsNothingBeyondADump) {
    std::span<const std::byte> nothing;
    EXPECT_FALSE(next_of_dump(nothing).has_value());
    std::vector<std::byte> dump(16 + 3 + 2);
    const std::uint64_t sizes = 3 | std::uint64_t{2} << 32;
    const std::uint64_t version = 9;
    std::memcpy(dump.data(), &sizes, 8);
    std::memcpy(dump.data() + 8, &version, 8);
    for (std::size_t length = 0; length < dump.size(); ++length) {
        std::span<const std::byte> part = std::span{dump}.first(length);
        EXPECT_FALSE(next_of_dump(part).has_value()) << length;
        EXPECT_EQ(part.size(), length) << "what is no item stays";
    }
    std::span<const std::byte> whole = dump;
    const auto entry = next_of_dump(whole);
    ASSERT_TRUE(entry.has_value());
    EXPECT_EQ(entry->key.size(), 3U);
    EXPECT_EQ(entry->value.size(), 2U);
    EXPECT_EQ(entry->version, 9U);
    EXPECT_TRUE(whole.empty());
}

TEST(KvProtocol, AsksForPagesOfADump) {
    const DumpRequest request{.from = static_cast<Cursor>(0x0102030405060708U), .bytes = 77};
    const auto packed = pack(request);
    const auto read = parse_dump_request(packed);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->from, request.from);
    EXPECT_EQ(read->bytes, 77U);
    for (std::size_t length = 0; length < packed.size(); ++length) {
        EXPECT_FALSE(parse_dump_request(std::span{packed}.first(length)).has_value()) << length;
    }
    std::vector<std::byte> longer(packed.begin(), packed.end());
    longer.push_back(std::byte{0});
    EXPECT_FALSE(parse_dump_request(longer).has_value());

    std::vector<std::byte> page(8 + 5, std::byte{9});
    std::memcpy(page.data(), &request.from, 8);
    const auto found = parse_dump_page(page);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->next, request.from);
    EXPECT_EQ(found->items.size(), 5U);
    EXPECT_FALSE(parse_dump_page(std::span{page}.first(7)).has_value());
}

TEST(KvProtocol, AsksForSeveralKeys) {
    const std::vector<std::string> keys{"a", "", "third"};
    const auto value = mget_of(100, keys);
    const auto read = parse_mget_request(value);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->bytes, 100U);
    EXPECT_EQ(read->count, 3U);
    std::span<const std::byte> rest = read->keys;
    for (const std::string& key : keys) {
        const auto one = next_of_keys(rest);
        ASSERT_TRUE(one.has_value());
        EXPECT_EQ(text(*one), key);
    }
    EXPECT_FALSE(next_of_keys(rest).has_value());
    EXPECT_TRUE(rest.empty());

    // One that ends between two keys asks for fewer.
    for (std::size_t length = 0; length < value.size(); ++length) {
        const bool is_between = length == 9 || length == 13;
        EXPECT_EQ(parse_mget_request(std::span{value}.first(length)).has_value(), is_between)
            << length;
    }
}

TEST(KvProtocol, RefusesSoManyKeysThatOthersWouldWaitAndAnswersWithoutRoom) {
    const std::vector<std::string> most(most_keys, "k");
    EXPECT_TRUE(parse_mget_request(mget_of(1 << 20, most)).has_value());
    std::vector<std::string> more = most;
    more.emplace_back("k");
    EXPECT_FALSE(parse_mget_request(mget_of(1 << 20, more)).has_value());
    EXPECT_FALSE(parse_mget_request(mget_of(1 << 20, {})).has_value());
    EXPECT_TRUE(parse_mget_request(mget_of(2 * mget_item_head_bytes, {"a", "b"})).has_value());
    EXPECT_FALSE(parse_mget_request(mget_of(2 * mget_item_head_bytes - 1, {"a", "b"})).has_value());
}

TEST(KvProtocol, SaysOfEachKeyWhatBecameOfIt) {
    const MgetItem items[] = {
        {.head = {Code::ok, 7}, .bytes = 5, .value = bytes("value")},
        {.head = {Code::key_error, 0}},
        {.head = {Code::ok, largest_version}, .bytes = longest_value, .is_left_out = true}};
    std::vector<std::byte> answer;
    for (const MgetItem& item : items) {
        const std::size_t at = answer.size();
        answer.resize(at + size_of(item));
        write(item, answer.data() + at);
    }
    EXPECT_EQ(answer.size(), 3 * mget_item_head_bytes + 5) << "what is left out takes no room";
    std::span<const std::byte> rest = answer;
    for (const MgetItem& item : items) {
        const auto read = next_of_mget(rest);
        ASSERT_TRUE(read.has_value());
        EXPECT_EQ(read->head.code, item.head.code);
        EXPECT_EQ(read->head.version, item.head.version);
        EXPECT_EQ(read->bytes, item.bytes);
        EXPECT_EQ(read->is_left_out, item.is_left_out);
        EXPECT_EQ(text(read->value), text(item.value));
    }
    EXPECT_TRUE(rest.empty());
    for (std::size_t length = 0; length < mget_item_head_bytes + 5; ++length) {
        rest = std::span{answer}.first(length);
        EXPECT_FALSE(next_of_mget(rest).has_value()) << length;
        EXPECT_EQ(rest.size(), length) << "what is no item stays";
    }
}

TEST(KvProtocol, BearsAnyBytes) {
    std::mt19937 random{5};
    for (int round = 0; round < 20'000; ++round) {
        std::vector<std::byte> payload(random() % 64);
        for (std::byte& one : payload) one = static_cast<std::byte>(random() % 4);
        if (const auto parts = parse_request(payload)) {
            EXPECT_EQ(size_of(*parts), payload.size());
        }
        std::span<const std::byte> rest = payload;
        while (next_of_dump(rest)) {
        }
        rest = payload;
        while (next_of_mget(rest)) {
        }
        if (const auto asked = parse_mget_request(payload)) {
            EXPECT_GE(payload.size(), 4 + 4 * asked->count);
        }
    }
}

}  // namespace
}  // namespace millrace::kv
