// What stands around the snippets about flow/: the types, objects and functions that they name and
// a reader has. Nothing here is defined or run.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "millrace/base/coroutine.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/flow/advice.hpp"
#include "millrace/flow/aggregate.hpp"
#include "millrace/flow/aggregating.hpp"
#include "millrace/flow/any.hpp"
#include "millrace/flow/conflating.hpp"
#include "millrace/flow/connector.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/coroutine.hpp"
#include "millrace/flow/fan_in.hpp"
#include "millrace/flow/fan_out.hpp"
#include "millrace/flow/item_name.hpp"
#include "millrace/flow/latest.hpp"
#include "millrace/flow/log.hpp"
#include "millrace/flow/log_reader.hpp"
#include "millrace/flow/merge.hpp"
#include "millrace/flow/priority.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/flow/profile.hpp"
#include "millrace/flow/rebalance.hpp"
#include "millrace/flow/replicate.hpp"
#include "millrace/flow/shared.hpp"
#include "millrace/flow/shared_fan_in.hpp"
#include "millrace/flow/shared_producer.hpp"
#include "millrace/flow/windowed.hpp"
#include "words.hpp"

struct Item {
    int key;
};
struct Row {
    int key;
    double price;
};
struct Key {
    int key;
};
struct Event {
    int key;
    long time;
};
using Entry = Item;
using Quote = Item;
using Job = Item;
using Order = Item;
struct Price {
    std::uint32_t instrument;
};
struct Sale {
    std::uint32_t article;
    long amount;
};
struct Above {
    double limit;
    bool operator()(const Row& row) const { return row.price > limit; }
};
struct KeyOf {
    Key operator()(const Row& row) const { return {row.key}; }
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

extern flow::Advice advice;
extern flow::Requirements wanted;
extern Item item;
extern Event event;
extern Item entry;
extern Item quote;
extern Price price;
extern Status status;
extern Item job;
extern Item order;
extern Row row;
extern long total;
extern Sale newest;
extern Sale sale;
extern std::uint64_t passed_over;
extern std::uint32_t instrument;
extern std::uint32_t host;
extern std::uint32_t M;
extern flow::Consumer<Sale> sales;
extern flow::Producer<Sale> till;
extern flow::Producer<Price> feed;
extern flow::Producer<flow::Keyed<std::uint32_t, flow::Sum<long>>> queue;
extern flow::Sum<double> other;
extern flow::Keyed<std::uint32_t, flow::Sum<long>> part;
extern flow::Consumer<flow::Keyed<std::uint32_t, flow::Sum<long>>> parts;
extern std::map<std::uint32_t, flow::Sum<long>> all;
extern flow::Consumer<Item> consumer;
extern std::array<Item, 100> table;
extern std::span<const Row* const> rows;
extern connect::Hub hub;
extern connect::Address my_address;
extern std::vector<connect::Address> addresses;
void use(const auto& item);
void use(const auto& item, const auto& label);
void serve(const auto& end);
void bill(const Item& item);
