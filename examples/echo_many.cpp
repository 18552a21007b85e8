// Answers clients of echo.cpp in one thread, until so many have left. Another one accepts them.
//     echo_many 127.0.0.1:7000 2 & echo 127.0.0.1:7000 hello there & echo 127.0.0.1:7000 goodbye
#include <millrace/connect/acceptor.hpp>
#include <millrace/connect/hub.hpp>
#include <millrace/message/channel.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>

using namespace millrace;

int main(int, char** argv) try {
    int to_leave = std::atoi(argv[2]);
    connect::Hub hub;
    std::map<int, std::pair<message::Channel, connect::Hub::Id>> clients;
    const auto answer = [&](int client) {
        auto& [channel, id] = clients.at(client);
        std::array<std::byte, 1024> word;
        std::size_t size = 0;
        auto status = channel.try_receive(std::span{word}, size);
        for (; status == base::Status::ok; status = channel.try_receive(std::span{word}, size)) {
            (void)channel.try_send(std::span{word}.first(size));  // it asks for one at a time
        }
        if (status == base::Status::empty) return;  // else it has closed, or died
        hub.remove(id), clients.erase(client);
        if (--to_leave == 0) hub.stop();
    };
    auto listener = message::Listener::listen(connect::Address::parse(argv[1]));
    const auto take = [&](message::Channel channel) {
        const int client = channel.descriptor();
        const auto id = hub.add_end(client, [&answer, client] { answer(client); });
        clients.emplace(client, std::pair{std::move(channel), id});
    };
    connect::Acceptor acceptor{listener, hub, take};
    (void)hub.run();
} catch (const base::Error& error) {
    return std::fprintf(stderr, "echo_many: %s\n", error.what()), 1;
}
