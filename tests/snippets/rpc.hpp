// What stands around the snippets about calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "millrace/base/coroutine.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/rpc/client.hpp"
#include "millrace/rpc/codec.hpp"
#include "millrace/rpc/coroutine.hpp"
#include "millrace/rpc/design.hpp"
#include "millrace/rpc/dispatcher.hpp"
#include "millrace/rpc/profile.hpp"
#include "millrace/rpc/server.hpp"
#include "millrace/rpc/stream.hpp"
#include "millrace/rpc/trace.hpp"
#include "words.hpp"

using rpc::Transfer;

struct Key {
    union {
        int key;
        int number;
    };
};
struct Value {
    int bytes;
};
struct Event {
    int number;
};
struct Person {
    std::string name;
};
struct Get {
    static constexpr std::string_view name = "get";
    using Request = Key;
    using Response = Value;
};
struct Put {
    static constexpr std::string_view name = "put";
    using Request = Value;
    using Response = Key;
};
struct Watch {
    static constexpr std::string_view name = "watch";
    using Request = Key;
    using Part = Event;
};
using Query = Key;
struct Search {
    static constexpr std::string_view name = "search";
    using Request = Query;
    using Response = Value;
};
struct Jobs {
    void add(auto&& work) { work(); }
};

extern rpc::Server server;
extern rpc::Client client;
extern std::shared_ptr<rpc::Dispatcher> dispatcher;
extern rpc::ClientOptions options;
extern rpc::Call<Get> call;
extern rpc::Sink<Event> sink;
extern Jobs jobs;
extern Event event;
extern Deadline never;
extern std::map<int, Value> values;
extern std::string_view http_header;
Value find(const Query& query);
void report(const rpc::Error& error);
void use(const auto& value);
