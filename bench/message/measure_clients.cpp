#include "measure_clients.hpp"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <span>
#include <thread>
#include <vector>

#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "millrace/message/channel.hpp"
#include "sides.hpp"
#include "workload/crowd.hpp"

namespace millrace::bench {
namespace {

using namespace std::chrono_literals;

const auto echo = [](message::Request& request) { (void)request.answer(request.payload()); };

double processor_seconds() {
    rusage usage{};
    require(getrusage(RUSAGE_SELF, &usage) == 0, "the time that was used");
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Of so many threads, each of which makes the calls of `caller_of(its number)` one after the
/// other.
template <class CallerOf>
double calls_a_second(std::size_t threads, CallerOf&& caller_of) {
    constexpr auto span = 300ms;
    const workload::CrowdFigures figures =
        workload::run_crowd({.members = threads}, [&](workload::CrowdMember& me) {
            workload::call_in_turn(me, {.warm_up = 50ms, .duration = span}, caller_of(me.number()));
        });
    return static_cast<double>(figures.calls()) / std::chrono::duration<double>(span).count();
}

}  // namespace

double calls_of_threads(std::size_t threads) {
    return run_pair(
        {.deadline = longest},
        [&](Pair& pair) {
            share_two_cores();
            std::vector<Client> clients = connect_all(pair, {}, threads, 1);
            const double per_second = calls_a_second(threads, [&](std::size_t i) {
                return [&client = clients[i], number = std::uint64_t{0}]() mutable {
                    call_once(client, ++number);
                };
            });
            leave(clients);
            return per_second;
        },
        [&](Pair& pair) {
            share_two_cores();
            Server server = listen(pair, message::Polling::automatic, {}, threads);
            serve_all(server, echo);
        });
}

CrowdOfCalls calls_of_crowd(const CrowdSetting& setting) {
    const ModeOfRun chosen{setting.mode};
    constexpr auto span = 300ms;
    CrowdOfCalls made;
    (void)run_pair(
        {.deadline = longest},
        [&](Pair& pair) {
            const connect::Address address = address_of_first(pair);
            using Kind = workload::CrowdOptions::Kind;
            const workload::CrowdFigures figures = workload::run_crowd(
                {.members = setting.clients,
                 .kind = setting.processes ? Kind::processes : Kind::threads},
                [&](workload::CrowdMember& me) {
                    Client client =
                        Client::connect(address, {.window = 1}, base::Deadline::after(20s));
                    workload::call_in_turn(me, {.warm_up = 50ms, .duration = span},
                                           [&client, number = std::uint64_t{0}]() mutable {
                                               call_once(client, ++number);
                                           });
                });
            made.per_second =
                static_cast<double>(figures.calls()) / std::chrono::duration<double>(span).count();
            made.mean_us = figures.ns->mean() / 1e3;
            made.p99_us = static_cast<double>(figures.ns->quantile(0.99)) / 1e3;
            return made.per_second;
        },
        [&](Pair& pair) {
            Server server = listen(pair, setting.polling, {}, setting.clients);
            serve_all(server, echo);
        });
    return made;
}

double echoes_of_pairs(std::size_t pairs, const std::string& mode, const base::WaitPolicy& wait) {
    const ModeOfRun chosen{mode};
    message::ChannelOptions options;
    options.wait = wait;
    options.ring_bytes = std::size_t{16} << 10;
    const auto patience = [] { return base::Deadline::after(20s); };
    return run_pair(
        {.deadline = longest},
        [&](Pair& pair) {
            share_two_cores();
            const connect::Address address = address_of_first(pair);
            std::vector<message::Channel> channels;
            for (std::size_t i = 0; i < pairs; ++i) {
                channels.push_back(message::connect(address, options, patience()));
            }
            pair.meet();
            const auto echo_once = [&](message::Channel& channel, std::uint64_t number) {
                std::array<std::byte, message_bytes> sent;
                stamp(sent.data(), sent.size(), number);
                require(channel.send(std::span<const std::byte>{sent}, patience()), "a message");
                const auto take = [&](std::span<const std::byte> echo) {
                    keep(read_all(echo.data(), echo.size()));
                    require_intact(stamped(echo.data(), echo.size(), number), "an echo");
                };
                require(channel.receive(take, patience()), "an echo");
            };
            const double per_second = calls_a_second(pairs, [&](std::size_t i) {
                return [&, &channel = channels[i], number = std::uint64_t{0}]() mutable {
                    echo_once(channel, ++number);
                };
            });
            channels.clear();
            return per_second;
        },
        [&](Pair& pair) {
            share_two_cores();
            auto listener =
                message::Listener::listen(connect::Address::tcp("127.0.0.1", 0), options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            std::vector<message::Channel> channels;
            for (std::size_t i = 0; i < pairs; ++i) channels.push_back(listener.accept(patience()));
            std::vector<std::jthread> threads;
            for (message::Channel& channel : channels) {
                threads.emplace_back([&] {
                    Status status = Status::ok;
                    const auto echo_it = [&](std::span<const std::byte> message) {
                        status = channel.send(message, patience());
                    };
                    while (channel.receive(echo_it, patience()) == Status::ok &&
                           status == Status::ok) {
                    }
                });
            }
            pair.meet();
        });
}

double percent_of_idle_clients(std::size_t clients) {
    const std::size_t count = clients_allowed(clients);
    return run_pair(
        {.deadline = longest},
        [&](Pair& pair) {
            std::vector<Client> connected = connect_all(pair, {}, count, 1);
            call_once(connected[count / 2], 1);
            pair.meet();
            pair.meet();
            const auto percent = static_cast<double>(pair.value(2)) / 1000;
            leave(connected);
            return percent;
        },
        [&](Pair& pair) {
            Server server = listen(pair, message::Polling::automatic, {}, count);
            while (server.stats().requests == 0) {
                require(server.serve(echo, base::Deadline::after(20ms)) == Status::timed_out,
                        "serving");
            }
            pair.meet();
            (void)server.serve(echo, base::Deadline::after(200ms));
            const double before = processor_seconds();
            constexpr auto span = 2s;
            (void)server.serve(echo, base::Deadline::after(span));
            const double share =
                (processor_seconds() - before) / std::chrono::duration<double>(span).count();
            pair.set_value(2, static_cast<std::uint64_t>(share * 100'000));
            pair.meet();
        });
}

double wake_of_sleeping() {
    const int bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    require(bell >= 0, "an eventfd");
    constexpr std::uint64_t wakes = 50;
    const double median = run_pair(
        {.shared_bytes = 4096, .deadline = longest},
        [&](Pair& pair) {
            auto& answered = *pair.shared_at<std::atomic<std::uint64_t>>(0);
            pair.meet();
            std::vector<double> times;
            for (std::uint64_t number = 1; number <= wakes; ++number) {
                std::this_thread::sleep_for(5ms);
                const auto start = base::Clock::now();
                const std::uint64_t one = 1;
                require(::write(bell, &one, sizeof one) == sizeof one, "to ring");
                const auto give_up = base::Deadline::after(20s);
                while (answered.load(std::memory_order_acquire) != number) {
                    base::pause();
                    require(!give_up.expired(), "an answer");
                }
                times.push_back(nanoseconds_since(start));
            }
            return quantile(std::move(times), 0.5);
        },
        [&](Pair& pair) {
            auto& answered = *pair.shared_at<std::atomic<std::uint64_t>>(0);
            const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
            epoll_event event{.events = EPOLLIN, .data = {.fd = bell}};
            require(epoll >= 0 && ::epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &event) == 0, "an epoll");
            pair.meet();
            std::uint64_t seen = 0;
            while (seen != wakes && ::epoll_wait(epoll, &event, 1, 20'000) == 1) {
                std::uint64_t count = 0;
                require(::read(bell, &count, sizeof count) == sizeof count, "to hear it");
                answered.store(seen += count, std::memory_order_release);
            }
            ::close(epoll);
        });
    ::close(bell);
    return median;
}

double call_to_sleeping(std::size_t clients) {
    const std::size_t count = clients_allowed(clients);
    return run_pair(
        {.deadline = longest},
        [&](Pair& pair) {
            std::vector<Client> connected = connect_all(pair, {}, count, 1);
            std::vector<double> times;
            for (std::uint64_t number = 1; number <= 50; ++number) {
                // Each another client, which the server has seen asleep, too.
                std::this_thread::sleep_for(5ms);
                Client& client = connected[number * (count / 51)];
                const auto start = base::Clock::now();
                call_once(client, 1);
                times.push_back(nanoseconds_since(start));
            }
            leave(connected);
            return quantile(std::move(times), 0.5);
        },
        [&](Pair& pair) {
            Server server = listen(pair, message::Polling::automatic, {}, count);
            serve_all(server, echo);
        });
}

}  // namespace millrace::bench
