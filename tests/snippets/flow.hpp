// What stands around the snippets about flow/: the types, objects and functions that they name and
// a reader has. Nothing here is defined or run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "millrace/base/coroutine.hpp"
#include "millrace/flow/aggregate.hpp"
#include "millrace/flow/any.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/coroutine.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/item_name.hpp"
#include "millrace/flow/latest.hpp"
#include "millrace/flow/priority.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/flow/shared.hpp"
#include "words.hpp"

struct Item {
    int key;
};
using Row = Item;
using Event = Item;
using Entry = Item;
using Quote = Item;
using Job = Item;
using Price = Item;
struct Sale {
    long amount;
};
namespace app {
struct Event {
    int number;
};
}  // namespace app
namespace shop {
struct Order {
    int number;
};
}  // namespace shop

extern Item item;
extern Item event;
extern Item entry;
extern Item quote;
extern Item price;
extern Status status;
extern Item job;
extern Item row;
extern long total;
extern Sale newest;
extern std::uint64_t passed_over;
extern std::uint32_t instrument;
extern std::uint32_t M;
extern flow::Consumer<Sale> sales;
extern flow::Consumer<Item> consumer;
extern std::array<Item, 100> table;
extern std::span<const Row* const> rows;
extern connect::Address my_address;
extern std::vector<connect::Address> addresses;
void use(const Item& item);
void use(const Item& item, const auto& label);
