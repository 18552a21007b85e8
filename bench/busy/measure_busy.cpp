#include "measure_busy.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/limits/socket_ends.hpp"
#include "bench/limits/sockets.hpp"
#include "millrace/base/histogram.hpp"
#include "millrace/flow/consumer.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/producer.hpp"
#include "millrace/message/channel.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/server.hpp"
#include "millrace/stream/socket.hpp"
#include "workload/pace.hpp"

namespace millrace::bench {
namespace {

using base::Status;

constexpr std::size_t message_bytes = 64;
using Message = std::array<std::byte, message_bytes>;

// An end's put() and take() say false where the other side has closed.

bool went_on(Status status, const char* what) {
    if (status == Status::closed || status == Status::peer_lost) return false;
    require(status, what);
    return true;
}

class ByChannel {
  public:
    ByChannel(Pair& pair, bool is_first, const base::WaitPolicy& wait)
        : channel_{made(pair, is_first, wait)} {}
    bool put(const Message& out) {
        return went_on(channel_.send(std::span<const std::byte>{out}, patience()), "a message");
    }
    bool take(Message& in) {
        std::size_t size = 0;
        return went_on(channel_.receive(std::span<std::byte>{in}, size, patience()), "a message");
    }
    void close() { (void)channel_.close(patience()); }

  private:
    static message::Channel made(Pair& pair, bool is_first, const base::WaitPolicy& wait) {
        message::ChannelOptions options;
        options.wait = wait;
        return is_first ? accept_second(pair,
                                        [&](const auto& address) {
                                            return message::Listener::listen(address, options);
                                        })
                        : message::connect(address_of_first(pair), options, patience());
    }
    message::Channel channel_;
};

class ByQueues {
  public:
    ByQueues(Pair& pair, bool is_first, const base::WaitPolicy& wait) {
        const flow::Options options{.wait = wait};
        if (is_first) {
            auto listener = flow::Listener::listen("127.0.0.1:0", options);
            pair.set_value(0, listener.address().port());
            pair.meet();
            out_.emplace(Out::accept(listener, patience()));
            in_.emplace(In::accept(listener, patience()));
        } else {
            const connect::Address address = address_of_first(pair);
            in_.emplace(In::connect(address, options, patience()));
            out_.emplace(Out::connect(address, options, patience()));
        }
    }
    bool put(const Message& out) { return went_on(out_->enqueue(out, patience()), "an item"); }
    bool take(Message& in) { return went_on(in_->dequeue(in, patience()), "an item"); }
    void close() { (void)out_->close(patience()); }

  private:
    using Out = flow::Producer<Message>;
    using In = flow::Consumer<Message>;
    std::optional<Out> out_;
    std::optional<In> in_;
};

class ByStream {
  public:
    ByStream(Pair& pair, bool is_first, const base::WaitPolicy& wait)
        : socket_{made(pair, is_first, wait)} {}
    bool put(const Message& out) {
        return went_on(socket_.write_all(std::span<const std::byte>{out}, patience()), "bytes");
    }
    bool take(Message& in) {
        for (std::size_t at = 0; at < in.size();) {
            std::size_t size = 0;
            if (!went_on(socket_.read_some(std::span{in}.subspan(at), size, patience()), "bytes")) {
                return false;
            }
            if (size == 0) return false;
            at += size;
        }
        return true;
    }
    void close() { (void)socket_.close(patience()); }

  private:
    static stream::Socket made(Pair& pair, bool is_first, const base::WaitPolicy& wait) {
        stream::SocketOptions options;
        options.wait = wait;
        return is_first ? accept_second(pair,
                                        [&](const auto& address) {
                                            return stream::Listener::listen(address, options);
                                        })
                        : stream::connect(address_of_first(pair), options, patience());
    }
    stream::Socket socket_;
};

class ByUnixSocket {
  public:
    ByUnixSocket(Pair& pair, workload::Descriptor socket)
        : pair_{&pair}, socket_{std::move(socket)} {}
    bool put(const Message& out) {
        send_all(socket_.get(), out.data(), out.size());
        return true;
    }
    bool take(Message& in) {
        return receive_all(*pair_, socket_.get(), in.data(), in.size(), SocketWait::blocking);
    }
    void close() { socket_ = workload::Descriptor{}; }

  private:
    Pair* pair_;
    workload::Descriptor socket_;
};

/// `answer(pair)` serves until the other side has left; `begin(pair)` gives what makes a round trip
/// (out, in) and, at its end, leaves.
template <class Begin, class Answer>
RoundTrips round_trips_of(const Trips& chosen, Begin&& begin, Answer&& answer) {
    const auto duration = chosen.duration;
    RoundTrips made;
    run_pair(
        {},
        [&](Pair& pair) {
            share_two_cores();
            auto asking = begin(pair);
            const auto ns = std::make_unique<base::Histogram>();
            const double ns_per_tick =
                1e9 / static_cast<double>(base::ticks_in(std::chrono::seconds{1}));
            Message out{};
            Message in{};
            const auto from = base::Clock::now() + duration / 5;
            std::optional<workload::Pace> pace;
            if (chosen.a_second != 0) {
                workload::end_sleeps_at_once();
                pace.emplace(chosen.a_second, 1, base::Clock::now());
            }
            for (std::uint64_t number = 1;; ++number) {
                stamp(out.data(), out.size(), number);
                if (pace && !pace->is_due()) pace->sleep();
                const std::uint64_t since = pace ? pace->due_ticks() : base::ticks();
                if (pace) pace->next();
                require(asking.round_trip(out, in), "a round trip");
                const std::uint64_t took = base::ticks() - since;
                require_intact(stamped(in.data(), in.size(), number), "a round trip");
                const auto now = base::Clock::now();
                if (now >= from + duration) break;
                if (now < from) continue;
                ns->record(static_cast<std::uint64_t>(static_cast<double>(took) * ns_per_tick));
            }
            asking.close();
            pair.meet();
            made = {.per_second = static_cast<double>(ns->count()) /
                                  std::chrono::duration<double>(duration).count(),
                    .median_us = static_cast<double>(ns->quantile(0.5)) / 1e3,
                    .p99_us = static_cast<double>(ns->quantile(0.99)) / 1e3};
            return 0.0;
        },
        [&](Pair& pair) {
            share_two_cores();
            answer(pair);
            pair.meet();
        });
    return made;
}

/// Of two ends that are alike.
template <class MakeEnd>
RoundTrips round_trips_between(const Trips& chosen, MakeEnd&& make) {
    using End = decltype(make(std::declval<Pair&>(), true));
    struct Asking {
        End end;
        bool round_trip(const Message& out, Message& in) { return end.put(out) && end.take(in); }
        void close() { end.close(); }
    };
    return round_trips_of(
        chosen, [&](Pair& pair) { return Asking{make(pair, true)}; },
        [&](Pair& pair) {
            End end = make(pair, false);
            Message message{};
            while (end.take(message) && end.put(message)) {
            }
            end.close();
        });
}

class Calling {
  public:
    Calling(Pair& pair, const base::WaitPolicy& wait) : client_{connected(pair, wait)} {}
    bool round_trip(const Message& out, Message& in) {
        return client_.call(
                   out.size(),
                   [&](std::span<std::byte> room) { std::ranges::copy(out, room.begin()); },
                   [&](std::span<const std::byte> answer) {
                       std::ranges::copy(answer, in.begin());
                   },
                   patience()) == message::Outcome::ok;
    }
    void close() { (void)client_.close(patience()); }

  private:
    static message::Client connected(Pair& pair, const base::WaitPolicy& wait) {
        message::ClientOptions options;
        options.wait = wait;
        return message::Client::connect(address_of_first(pair), options, patience());
    }
    message::Client client_;
};

void serve_calls(Pair& pair, const base::WaitPolicy& wait) {
    message::ServerOptions options;
    options.wait = wait;
    auto server = message::Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
    pair.set_value(0, server.address().port());
    pair.meet();
    const auto echo = [](message::Request& request) { (void)request.answer(request.payload()); };
    while (server.stats().joined == 0 || server.stats().clients != 0) {
        (void)server.serve(echo, base::Deadline::after(std::chrono::milliseconds{20}));
    }
}

template <class MakeEnd>
double items_per_second_of(std::chrono::milliseconds duration, MakeEnd&& make) {
    return run_pair(
        {.shared_bytes = 64},
        [&](Pair& pair) {
            share_two_cores();
            auto end = make(pair, true);
            pair.meet();
            Message in{};
            std::uint64_t number = 0;
            const auto take_until = [&](base::Clock::time_point time) {
                for (;;) {
                    require(end.take(in), "an item");
                    require_intact(stamped(in.data(), in.size(), ++number), "an item");
                    if (number % 16 == 0 && base::Clock::now() >= time) return;
                }
            };
            take_until(base::Clock::now() + duration / 5);
            const std::uint64_t first = number;
            const auto start = base::Clock::now();
            take_until(start + duration);
            const double rate =
                static_cast<double>(number - first) / nanoseconds_since(start) * 1e9;
            pair.shared_at<std::atomic<int>>(0)->store(1, std::memory_order_release);
            while (end.take(in)) {
            }
            end.close();
            pair.meet();
            return rate;
        },
        [&](Pair& pair) {
            share_two_cores();
            auto end = make(pair, false);
            pair.meet();
            Message out{};
            const auto* const is_over = pair.shared_at<std::atomic<int>>(0);
            for (std::uint64_t number = 1; is_over->load(std::memory_order_acquire) == 0;
                 ++number) {
                stamp(out.data(), out.size(), number);
                if (!end.put(out)) break;
            }
            end.close();
            pair.meet();
        });
}

template <class Use>
auto with_ends(Contact contact, const base::WaitPolicy& wait, Use&& use) {
    const auto by = [&]<class End>(std::type_identity<End>) {
        return use([&](Pair& pair, bool is_first) { return End{pair, is_first, wait}; });
    };
    switch (contact) {
        case Contact::channel: return by(std::type_identity<ByChannel>{});
        case Contact::queues: return by(std::type_identity<ByQueues>{});
        case Contact::stream: return by(std::type_identity<ByStream>{});
        case Contact::call:
        case Contact::unix_socket: break;
    }
    SocketEnds ends = connected(SocketKind::unix_stream);
    return use([&](Pair& pair, bool is_first) {
        (is_first ? ends.second : ends.first) = workload::Descriptor{};
        return ByUnixSocket{pair, std::move(is_first ? ends.first : ends.second)};
    });
}

}  // namespace

RoundTrips round_trips(const Trips& chosen) {
    if (chosen.by == Contact::call) {
        return round_trips_of(
            chosen,
            [&](Pair& pair) {
                return Calling{pair, chosen.wait};
            },
            [&](Pair& pair) { serve_calls(pair, chosen.wait); });
    }
    return with_ends(chosen.by, chosen.wait,
                     [&](auto&& make) { return round_trips_between(chosen, make); });
}

double items_per_second(Contact contact, const base::WaitPolicy& wait,
                        std::chrono::milliseconds duration) {
    return with_ends(contact, wait,
                     [&](auto&& make) { return items_per_second_of(duration, make); });
}

}  // namespace millrace::bench
