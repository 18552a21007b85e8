// What stands around the snippets about messages, event loops, and what lies below both.
#pragma once

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/base/coroutine.hpp"
#include "millrace/connect/acceptor.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/connect/hub.hpp"
#include "millrace/connect/transport.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/coroutine.hpp"
#include "millrace/message/dispatcher.hpp"
#include "millrace/message/server.hpp"
#include "millrace/message/server_group.hpp"
#include "words.hpp"

struct Event {
    int number;
};
struct Line {
    char text[80];
};
struct Channels {
    void add(message::Channel&& channel);
};

extern connect::Hub hub;
extern flow::Listener lines;
extern message::Listener listener;
extern message::Channel channel;
extern message::Client client;
extern Channels channels;
extern std::vector<connect::Address> servers;
extern std::vector<std::byte> request;
extern std::vector<std::byte> answer;
extern std::vector<std::vector<std::byte>> keys;
extern std::uint64_t id;
extern int epoll;
void handle(const Event& event);
void handler(message::Request& request);
void take(const message::Answer& answer);
void use(message::Channel& channel);
void print_statistics();
