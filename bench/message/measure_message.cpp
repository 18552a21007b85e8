#include "measure_message.hpp"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/statistics.hpp"
#include "bench/framework/windows.hpp"
#include "bench/limits/socket_ends.hpp"
#include "sides.hpp"
#include "workload/descriptor.hpp"

namespace millrace::bench {
namespace {

/// How much `part()` says that it did, a second: the median of so many calls, which forgives that
/// the system took a core away for a moment.
template <class Part>
double median_rate(Part&& part) {
    std::vector<double> rates(Windows::count);
    for (double& rate : rates) {
        const auto start = base::Clock::now();
        const auto done = static_cast<double>(part());
        rate = done / nanoseconds_since(start) * 1e9;
    }
    return quantile(std::move(rates), 0.5);
}

constexpr std::uint32_t no_offset = ~std::uint32_t{0};

/// The first offset that tells of a message; `count` if there is none.
std::size_t first_offset(const std::uint32_t* offsets, std::size_t count) noexcept {
    std::size_t i = 0;
    while (i != count && static_cast<const volatile std::uint32_t&>(offsets[i]) == no_offset) ++i;
    return i;
}

#if defined(__x86_64__)
std::size_t first_offset_sse2(const std::uint32_t* offsets, std::size_t count) noexcept {
    const __m128i nothing = _mm_set1_epi32(-1);
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const auto here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(offsets + i));
        if (_mm_movemask_epi8(_mm_cmpeq_epi32(nothing, here)) != 0xffff) break;
    }
    return i + first_offset(offsets + i, count - i);
}

[[gnu::target("avx2")]] std::size_t first_offset_avx2(const std::uint32_t* offsets,
                                                      std::size_t count) noexcept {
    const __m256i nothing = _mm256_set1_epi32(-1);
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const auto here = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(offsets + i));
        if (_mm256_movemask_epi8(_mm256_cmpeq_epi32(nothing, here)) != -1) break;
    }
    return i + first_offset(offsets + i, count - i);
}
#else
constexpr auto first_offset_sse2 = first_offset;
constexpr auto first_offset_avx2 = first_offset;
#endif

}  // namespace

std::size_t clients_allowed(std::size_t wanted) {
    rlimit files{};
    require(getrlimit(RLIMIT_NOFILE, &files) == 0, "the limit on open files");
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    return std::min<std::size_t>(wanted, (files.rlim_cur - 100) / 10);
}

double scan_of_empty(message::ScanKernel kernel, std::size_t count) {
    return run_alone([&] {
        std::vector<std::byte> memory(count + 64);
        std::byte* const boxes =
            memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
        const message::Scan scan = message::scan_by(kernel);
        return median_step(Windows{20'000'000 / count + 1000}, [&](std::uint64_t) {
            keep(boxes);
            require(scan(boxes, 0, count) == count, "nothing");
        });
    });
}

std::string_view name_of(OffsetScan scan) noexcept {
    switch (scan) {
        case OffsetScan::scalar: return "scalar";
        case OffsetScan::sse2: return "sse2";
        case OffsetScan::avx2: return "avx2";
    }
    return "unknown";
}

bool is_available(OffsetScan scan) noexcept {
    switch (scan) {
        case OffsetScan::scalar: return true;
        case OffsetScan::sse2: return message::is_available(message::ScanKernel::sse2);
        case OffsetScan::avx2: return message::is_available(message::ScanKernel::avx2);
    }
    return false;
}

double scan_of_empty_offsets(OffsetScan scan, std::size_t count) {
    require(is_available(scan), "a scan that this processor has");
    const auto look = scan == OffsetScan::scalar ? first_offset
                      : scan == OffsetScan::sse2 ? first_offset_sse2
                                                 : first_offset_avx2;
    return run_alone([&] {
        const std::vector<std::uint32_t> offsets(count, no_offset);
        return median_step(Windows{20'000'000 / count + 1000}, [&](std::uint64_t) {
            keep(offsets.data());
            require(look(offsets.data(), count) == count, "nothing");
        });
    });
}

double call_of_one(const CallSetting& setting) {
    const ModeOfRun mode{setting.mode};
    const std::size_t count = clients_allowed(setting.connected);
    return run_pair(
        {.deadline = longest},
        [&](Pair& pair) {
            std::vector<Client> clients = connect_all(pair, setting.ways, count, 16);
            Client& client = clients[count / 2];
            std::vector<std::byte> request(setting.bytes);
            std::vector<std::byte> answer(setting.bytes);
            const auto deadline = base::Deadline::never();
            const double ns = median_step(Windows{setting.calls}, [&](std::uint64_t number) {
                stamp(request.data(), request.size(), number);
                message::Outcome outcome;
                if (setting.zero_copy) {
                    outcome = client.call(
                        setting.bytes,
                        [&](std::span<std::byte> room) {
                            std::memcpy(room.data(), request.data(), room.size());
                        },
                        [&](std::span<const std::byte> bytes) {
                            keep(read_all(bytes.data(), bytes.size()));
                            require_intact(stamped(bytes.data(), bytes.size(), number), "a call");
                        },
                        deadline);
                } else {
                    outcome = client.call(request, answer, deadline);
                    keep(read_all(answer.data(), answer.size()));
                    require_intact(stamped(answer.data(), answer.size(), number), "a call");
                }
                require(outcome == message::Outcome::ok, "a call");
            });
            leave(clients);
            return ns;
        },
        [&](Pair& pair) {
            Server server = listen(pair, setting.polling, setting.ways, count, setting.scan);
            if (setting.zero_copy) {
                serve_all(server, [](message::Request& request) {
                    (void)request.answer(request.payload());
                });
            } else {
                std::vector<std::byte> copy;
                serve_all(server, [&](message::Request& request) {
                    copy.assign(request.payload().begin(), request.payload().end());
                    (void)request.answer(copy);
                });
            }
        });
}

Load load_of_many(const LoadSetting& setting) {
    const ModeOfRun mode{setting.mode};
    const std::size_t count = clients_allowed(setting.connected);
    const std::size_t active = std::min(setting.active, count);
    Load load;
    load.per_second = run_pair(
        {.deadline = longest},
        [&](Pair& pair) {
            std::vector<Client> clients = connect_all(pair, setting.ways, count, setting.window);
            std::vector<std::uint64_t> served(active);
            std::vector<std::uint64_t> sent(active);
            std::array<std::byte, message_bytes> request{};
            const auto submit_to = [&](std::size_t i, Client& client) {
                std::uint64_t id = 0;
                while (true) {
                    stamp(request.data(), request.size(), sent[i] + 1);
                    const Status status = client.submit(request, id);
                    if (status == Status::full) break;
                    require(status, "a request");
                    ++sent[i];
                }
            };
            const auto take_from = [&](std::size_t i, Client& client) {
                std::uint64_t answered = 0;
                while (client.poll([&](const message::Answer& answer) {
                    keep(read_all(answer.payload.data(), answer.payload.size()));
                    require_intact(stamped(answer.payload.data(), answer.payload.size(), answer.id),
                                   "an answer");
                }) == Status::ok) {
                    ++answered;
                }
                served[i] += answered;
                return answered;
            };
            const auto take_all_from = [&](std::size_t i, Client& client) {
                const std::uint64_t answered =
                    client
                        .poll_all([&](const message::Answer& answer) {
                            keep(read_all(answer.payload.data(), answer.payload.size()));
                            require_intact(
                                stamped(answer.payload.data(), answer.payload.size(), answer.id),
                                "an answer");
                        })
                        .count;
                served[i] += answered;
                return answered;
            };
            const auto submit_several_to = [&](std::size_t i, Client& client) {
                std::uint64_t first = 0;
                const std::uint64_t next = sent[i] + 1;
                const message::BatchResult result = client.submit_several(
                    client.window(), message_bytes,
                    [&request, next](std::size_t index, std::span<std::byte> room) {
                        std::memcpy(room.data(), request.data(), message_bytes);
                        stamp(room.data(), message_bytes, next + index);
                    },
                    first);
                if (result.status != Status::full) require(result.status, "requests");
                sent[i] += result.count;
            };
            const auto round = [&](std::uint64_t until) {
                std::uint64_t answered = 0;
                while (answered < until) {
                    for (std::size_t i = 0; i < active; ++i) {
                        Client& client = clients[i * (count / active)];
                        if (setting.batches) {
                            if (active == count) message::prefetch_next(clients, i);
                            // As many as were answered go together.
                            answered += take_all_from(i, client);
                            submit_several_to(i, client);
                        } else {
                            // What was gathered goes when a look finds nothing.
                            submit_to(i, client);
                            answered += take_from(i, client);
                        }
                    }
                }
            };
            round(setting.requests / 10);
            std::fill(served.begin(), served.end(), 0);
            const double rate = median_rate([&] {
                const std::uint64_t part = setting.requests / Windows::count;
                round(part);
                return part;
            });
            std::uint64_t all = 0;
            for (const std::uint64_t one : served) all += one;
            load.least_to_mean =
                static_cast<double>(*std::min_element(served.begin(), served.end())) *
                static_cast<double>(active) / static_cast<double>(all);
            leave(clients);
            return rate;
        },
        [&](Pair& pair) {
            Server server = listen(pair, setting.polling, setting.ways, count);
            serve_all(server,
                      [](message::Request& request) { (void)request.answer(request.payload()); });
        });
    return load;
}

double load_over_sockets(std::size_t clients, std::uint32_t window, std::uint64_t requests) {
    const std::size_t count = clients_allowed(clients);
    const std::size_t most = message_bytes * window;
    std::vector<SocketEnds> ends;
    for (std::size_t i = 0; i < count; ++i) ends.push_back(connected(SocketKind::unix_stream));
    // A side's own ends, the other's closed: else it would not see that they end.
    const auto take = [&ends](workload::Descriptor SocketEnds::*own) {
        std::vector<workload::Descriptor> taken;
        for (SocketEnds& pair : ends) taken.push_back(std::move(pair.*own));
        ends.clear();
        return taken;
    };
    const auto watch = [](int epoll, int descriptor, std::uint64_t index) {
        epoll_event event{.events = EPOLLIN, .data = {.u64 = index}};
        require(epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0, "epoll");
    };
    return run_pair(
        {.deadline = longest},
        [&](Pair& pair) {
            const workload::Descriptor epoll{epoll_create1(EPOLL_CLOEXEC)};
            const std::vector<workload::Descriptor> sockets = take(&SocketEnds::first);
            pair.meet();
            struct Side {
                std::uint64_t sent = 0, answered = 0;
                std::vector<std::byte> part;
            };
            std::vector<Side> sides(count);
            std::vector<std::byte> memory(most);
            const auto submit = [&](std::size_t i, std::size_t number) {
                for (std::size_t k = 0; k < number; ++k) {
                    stamp(memory.data() + k * message_bytes, message_bytes, ++sides[i].sent);
                }
                send_all(sockets[i].get(), memory.data(), number * message_bytes);
            };
            for (std::size_t i = 0; i < count; ++i) {
                watch(epoll.get(), sockets[i].get(), i);
                submit(i, window);
            }
            std::vector<std::byte> into(most);
            std::array<epoll_event, 64> events;
            const auto round = [&](std::uint64_t until) {
                std::uint64_t answered = 0;
                while (answered < until) {
                    const int some = epoll_wait(epoll.get(), events.data(), 64, -1);
                    for (int e = 0; e < some; ++e) {
                        const std::size_t i = events[static_cast<std::size_t>(e)].data.u64;
                        Side& side = sides[i];
                        const ssize_t got = recv(sockets[i].get(), into.data(), into.size(), 0);
                        require(got > 0, "answers");
                        side.part.insert(side.part.end(), into.begin(), into.begin() + got);
                        const std::size_t whole = side.part.size() / message_bytes;
                        for (std::size_t k = 0; k < whole; ++k) {
                            const std::byte* const at = side.part.data() + k * message_bytes;
                            keep(read_all(at, message_bytes));
                            require_intact(stamped(at, message_bytes, ++side.answered),
                                           "an answer");
                        }
                        side.part.erase(
                            side.part.begin(),
                            side.part.begin() + static_cast<std::ptrdiff_t>(whole * message_bytes));
                        if (whole != 0) submit(i, whole);
                        answered += whole;
                    }
                }
                return answered;
            };
            (void)round(requests / 10);
            return median_rate([&] { return round(requests / Windows::count); });
        },
        [&](Pair& pair) {
            const workload::Descriptor epoll{epoll_create1(EPOLL_CLOEXEC)};
            const std::vector<workload::Descriptor> sockets = take(&SocketEnds::second);
            for (std::size_t i = 0; i < count; ++i) watch(epoll.get(), sockets[i].get(), i);
            pair.meet();
            std::vector<std::byte> memory(most);
            std::array<epoll_event, 64> events;
            for (std::size_t left = count; left != 0;) {
                const int some = epoll_wait(epoll.get(), events.data(), 64, -1);
                for (int e = 0; e < some; ++e) {
                    const int from = sockets[events[static_cast<std::size_t>(e)].data.u64].get();
                    const ssize_t got = recv(from, memory.data(), memory.size(), 0);
                    // A client that has ended leaves answers unread.
                    if (got > 0 && send(from, memory.data(), static_cast<std::size_t>(got),
                                        MSG_NOSIGNAL) == got) {
                        continue;
                    }
                    (void)epoll_ctl(epoll.get(), EPOLL_CTL_DEL, from, nullptr);
                    --left;
                }
            }
        });
}

}  // namespace millrace::bench
