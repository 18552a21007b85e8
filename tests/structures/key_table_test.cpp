// The table of keys, by what a list and a search through it would answer.
#include "millrace/flow/key_table.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "millrace/flow/fan_out.hpp"

namespace millrace::flow {
namespace {

struct Numbered {
    std::uint64_t key = 0;
    int number = 0;
};
using NumberedTable = detail::KeyTable<Numbered, std::uint64_t Numbered::*>;

std::vector<int> row_of(NumberedTable& table) {
    std::vector<int> row;
    for (auto at = table.front(); at != NumberedTable::none; at = table.after(at)) {
        row.push_back(table[at].number);
    }
    return row;
}

TEST(KeyTable, IsWhatAListWouldBe) {
    const bool held = rc::check([] {
        const auto most = *rc::gen::inRange<std::uint32_t>(1, 20);
        // Few different hashes at times: keys that are looked for in one another's place.
        const auto same = *rc::gen::element<std::uint64_t>(1, 3, 1000);
        NumberedTable table{most, &Numbered::key};
        std::vector<Numbered> list;
        int number = 0;
        const auto steps =
            *rc::gen::container<std::vector<std::uint64_t>>(rc::gen::inRange<std::uint64_t>(0, 30));
        for (const std::uint64_t key : steps) {
            const auto in_list = std::ranges::find(list, key, &Numbered::key);
            const std::uint64_t hash = NumberedTable::hash_of(key) % same;
            const std::uint32_t at = table.find(key, hash);
            RC_ASSERT((at != NumberedTable::none) == (in_list != list.end()));
            if (at != NumberedTable::none) {
                RC_ASSERT(table[at].number == in_list->number);
                table.remove(at);
                list.erase(in_list);
            } else if (!table.is_full()) {
                list.push_back({key, ++number});
                table.add(list.back(), hash);
            }
            RC_ASSERT(table.is_full() == (list.size() == most));
            RC_ASSERT(table.size() == list.size());
            std::vector<int> expected;
            for (const Numbered& one : list) expected.push_back(one.number);
            RC_ASSERT(row_of(table) == expected);
        }
        for (const Numbered& one : list) {
            RC_ASSERT(table.find(one.key, NumberedTable::hash_of(one.key) % same) !=
                      NumberedTable::none);
        }
    });
    EXPECT_TRUE(held);
}

enum class Colour : std::uint8_t { red = 1, green };

TEST(KeyHash, KnowsKeysOfManyTypes) {
    EXPECT_EQ(KeyHash<int>{}(7), 7U);
    EXPECT_EQ(KeyHash<Colour>{}(Colour::green), 2U);
    using Symbol = std::array<char, 12>;
    std::set<std::uint64_t> seen;
    for (char last = 'a'; last <= 'z'; ++last) {
        for (std::size_t at = 0; at != 12; ++at) {
            Symbol symbol{};
            symbol[at] = last;
            seen.insert(KeyHash<Symbol>{}(symbol));
        }
    }
    EXPECT_EQ(seen.size(), 26 * 12U) << "a byte has no say in it";
    EXPECT_EQ(KeyHash<std::string>{}("abc"), KeyHash<std::string>{}("abc"));
}

TEST(KeyHash, LeavesKeysToThePartitionsThatTheyHadBefore) {
    EXPECT_EQ(partition_of(1, 1000), 704U);
    EXPECT_EQ(partition_of(4711, 1000), 253U);
}

}  // namespace
}  // namespace millrace::flow
