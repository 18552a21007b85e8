#include "words_load.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/limits/socket_ends.hpp"
#include "bench/peers/memcached.hpp"
#include "millrace/base/clock.hpp"

namespace millrace::bench {
namespace {

std::string repeated(const std::string& text, unsigned times) {
    std::string all;
    for (unsigned i = 0; i != times; ++i) all += text;
    return all;
}

struct Connection {
    workload::Descriptor socket;
    std::size_t got = 0;  ///< of the answers to what was sent last
};

}  // namespace

double answers_per_second(const WordsLoad& load, const connect::Address& server) {
    const std::string requests = repeated(load.request, load.pipeline);
    const std::string answers = repeated(load.answer, load.pipeline);
    const auto ask = [&](const Connection& connection) {
        send_all(connection.socket.get(), reinterpret_cast<const std::byte*>(requests.data()),
                 requests.size());
    };
    const workload::Descriptor epoll{::epoll_create1(EPOLL_CLOEXEC)};
    require(epoll.get() >= 0, "an epoll");
    std::vector<Connection> all;
    all.reserve(load.connections);
    while (all.size() != load.connections) {
        all.push_back({connected_to(server)});
        epoll_event event{.events = EPOLLIN, .data = {.ptr = &all.back()}};
        require(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, all.back().socket.get(), &event) == 0,
                "a connection in an epoll");
    }
    for (const Connection& connection : all) ask(connection);
    std::array<epoll_event, 64> events;
    std::array<char, 65536> bytes;
    std::uint64_t answered = 0;
    const auto serve_until = [&](base::Clock::time_point end) {
        while (base::Clock::now() < end) {
            const int count =
                ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), 5'000);
            require(count > 0, "an answer");
            for (int i = 0; i != count; ++i) {
                auto& one = *static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
                const ssize_t got = ::recv(one.socket.get(), bytes.data(), bytes.size(), 0);
                require(got > 0, "an answer");
                const auto size = static_cast<std::size_t>(got);
                require_intact(one.got + size <= answers.size() &&
                                   std::memcmp(bytes.data(), answers.data() + one.got, size) == 0,
                               "an answer");
                one.got += size;
                if (one.got != answers.size()) continue;
                one.got = 0;
                answered += load.pipeline;
                ask(one);
            }
        }
    };
    serve_until(base::Clock::now() + load.warm_up);
    answered = 0;
    const auto start = base::Clock::now();
    serve_until(start + load.duration);
    return static_cast<double>(answered) * 1e9 / nanoseconds_since(start);
}

}  // namespace millrace::bench
