#include "measure_uncredited.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/datagram.hpp"

namespace millrace::bench {
namespace {

constexpr std::uint32_t key = 0x1ace;  ///< Q_Key of the datagrams
constexpr std::uint64_t sends = 64;    ///< on their way at a time
constexpr std::uint64_t signaled_each = 16;
constexpr std::size_t longest_datagram = 1024;
/// With nothing for so long, what was sent before has arrived or never will.
constexpr std::chrono::milliseconds over_after{20};

/// What both sides see.
struct Shared {
    std::atomic<std::uint64_t> sent;  ///< once the producer has ended; 0 before
    std::atomic<std::uint64_t> arrived;
};

/// One side: a queue pair and its memory, of `slots` items.
class Side {
  public:
    Side(connect::Link link, const FlowCase& chosen, Uncredited way, std::uint64_t slots)
        : link_{std::move(link)},
          is_datagram_{way == Uncredited::datagrams},
          head_{is_datagram_ ? verbs::datagram_header_bytes : 0},
          slot_{(chosen.item_bytes + head_ + 63) / 64 * 64},
          bytes_{chosen.item_bytes},
          memory_{link_.protection_domain().allocate(slots * slot_, verbs::Access::local_write)},
          sent_{context().create_completion_queue(2 * sends)},
          received_{context().create_completion_queue(static_cast<int>(2 * slots))} {
        verbs::QueuePairOptions options;
        options.send_queue = &sent_;
        options.receive_queue = &received_;
        options.max_send_requests = 2 * sends;
        options.max_receive_requests = static_cast<std::uint32_t>(slots);
        const ibv_port_attr port = context().port(link_.endpoint().port());
        verbs::PathOptions path;
        path.port = link_.endpoint().port();
        path.gid_index = link_.endpoint().gid_index();
        path.mtu = port.active_mtu;
        verbs::QueuePairAddress mine{.lid = port.lid};
        if (path.gid_index >= 0) {
            mine.has_gid = true;
            mine.gid = context().gid(path.port, path.gid_index);
        }
        if (is_datagram_) {
            datagrams_ = link_.protection_domain().create_datagram_queue_pair(options);
            datagrams_.start(path.port, key);
            mine.number = datagrams_.number();
        } else {
            connected_ = link_.protection_domain().create_queue_pair(options);
            connected_.initialise(path.port, verbs::Access::none);
            mine.number = connected_.number();
        }
        const auto answer = link_.exchange(std::as_bytes(std::span{&mine, 1}), patience());
        require(answer.size() == sizeof peer_, "the peer's address");
        std::memcpy(&peer_, answer.data(), sizeof peer_);
        if (is_datagram_) {
            way_ = link_.protection_domain().create_address_handle(peer_, path);
        } else {
            connected_.connect(peer_, 0, path);
        }
    }

    // --- the producer's

    /// False: as many are on their way as may be.
    [[nodiscard]] bool try_send(std::uint64_t number) {
        take_completions();
        if (posted_ - completed_ >= sends) return false;
        std::byte* const item = memory_.data() + number % sends * slot_;
        std::memcpy(item, &number, 4);
        const ibv_sge slice = memory_.slice(number % sends * slot_, bytes_);
        const auto flags =
            ++posted_ % signaled_each == 0 ? verbs::SendFlags::signaled : verbs::SendFlags::none;
        if (is_datagram_) {
            require(datagrams_.post(verbs::SendTo{.id = posted_,
                                                  .from = {&slice, 1},
                                                  .to = {&way_, peer_.number, key},
                                                  .flags = flags}) == 0,
                    "a posted datagram");
        } else {
            require(connected_.post(
                        verbs::Send{.id = posted_, .from = {&slice, 1}, .flags = flags}) == 0,
                    "a posted SEND");
        }
        return true;
    }
    void take_completions() {
        std::array<verbs::Completion, 8> found;
        const int count = sent_.poll(found);
        require(count >= 0, "a poll");
        for (int i = 0; i < count; ++i) {
            require(found[static_cast<std::size_t>(i)].ok(), "a SEND");
            completed_ = found[static_cast<std::size_t>(i)].id();
        }
    }

    // --- the consumer's

    void post_receive(std::uint64_t slot) {
        const ibv_sge into = memory_.slice(slot * slot_, head_ + bytes_);
        const verbs::Receive receive{.id = slot, .into = {&into, 1}};
        require((is_datagram_ ? datagrams_.post(receive) : connected_.post(receive)) == 0,
                "a posted receive");
    }
    /// Takes what has arrived, and posts its receive again. How many.
    [[nodiscard]] std::uint64_t take() {
        std::array<verbs::Completion, 8> found;
        const int count = received_.poll(found);
        require(count >= 0, "a poll");
        for (int i = 0; i < count; ++i) {
            const verbs::Completion& one = found[static_cast<std::size_t>(i)];
            require(one.ok(), "an item");
            const std::byte* const item = memory_.data() + one.id() * slot_ + head_;
            keep(read_all(item, bytes_));
            std::uint32_t number = 0;
            std::memcpy(&number, item, sizeof number);
            require_intact(number >= next_, "items in order");
            require_intact(is_datagram_ || number == next_, "every item");
            next_ = number + 1;
            post_receive(one.id());
        }
        return static_cast<std::uint64_t>(count);
    }

    void meet() { (void)link_.exchange({}, patience()); }

  private:
    [[nodiscard]] verbs::Context& context() { return link_.endpoint().context(); }

    connect::Link link_;
    bool is_datagram_;
    std::size_t head_;  ///< before an item that arrives
    std::size_t slot_;
    std::size_t bytes_;
    verbs::RegisteredBuffer memory_;
    verbs::CompletionQueue sent_;
    verbs::CompletionQueue received_;
    verbs::AddressHandle way_;
    verbs::QueuePair connected_;
    verbs::DatagramQueuePair datagrams_;
    verbs::QueuePairAddress peer_{};
    std::uint64_t posted_ = 0;
    std::uint64_t completed_ = 0;
    std::uint32_t next_ = 0;
};

/// Of the soft device of a process: how often the first of the requests that wait found no receive.
std::uint64_t not_ready(int pid) {
    std::uint64_t sum = 0;
    for (const auto& page : base::StatisticsPage::of_process(pid)) {
        if (page.title != "soft device") continue;
        for (const auto& [name, value] : page.counters) {
            if (name == "receiver not ready") sum += value;
        }
    }
    return sum;
}

/// Its counters are published ten times a second, by whoever polls.
template <class Poll>
void until_published(Poll&& poll) {
    const auto end = base::Deadline::after(std::chrono::milliseconds{250});
    while (!end.expired()) poll();
}

connect::LinkOptions link_options() {
    connect::LinkOptions options;
    options.service = "bench without credit";
    return options;
}

StreamResult produce(Pair& pair, Side& side, const FlowCase& chosen, Uncredited way) {
    Shared& shared = *pair.shared_at<Shared>(0);
    StreamResult result;
    side.meet();
    const auto start = base::Clock::now();
    const auto end = base::Deadline::after(chosen.limit);
    std::uint64_t number = 0;
    for (std::uint32_t turn = 1; number != chosen.items; ++turn) {
        if (side.try_send(number)) {
            ++number;
            if (number % 64 == 0 && end.expired()) break;
        } else if ((turn & 1023U) == 0) {
            pair.check(turn);
            if (end.expired()) break;
        }
    }
    result.seconds = nanoseconds_since(start) / 1e9;
    shared.sent.store(number, std::memory_order_release);
    pair.spin_until([&] {
        side.take_completions();
        return shared.arrived.load(std::memory_order_acquire) != 0;
    });
    if (way == Uncredited::reliable) result.seconds = nanoseconds_since(start) / 1e9;
    until_published([&] { side.take_completions(); });
    const std::uint64_t arrived = shared.arrived.load(std::memory_order_acquire) - 1;
    const auto each = static_cast<double>(number);
    result.items = arrived;
    result.dropped = static_cast<double>(number - arrived) / each;
    result.retried =
        static_cast<double>(not_ready(::getpid()) + not_ready(pair.other_pid())) / each;
    require(arrived != 0, "an item that arrived");
    pair.meet();
    return result;
}

void consume(Pair& pair, Side& side, const FlowCase& chosen, Uncredited way) {
    Shared& shared = *pair.shared_at<Shared>(0);
    for (std::uint32_t i = 0; i != chosen.receive_pool; ++i) side.post_receive(i);
    side.meet();
    std::uint64_t arrived = 0;
    std::optional<base::Deadline> quiet;  // since the producer has ended
    for (std::uint32_t turn = 1;; ++turn) {
        const std::uint64_t sent = shared.sent.load(std::memory_order_acquire);
        const std::uint64_t more = side.take();
        arrived += more;
        if (sent != 0 && arrived == sent) break;
        if (more != 0) {
            quiet.reset();
        } else if (way == Uncredited::datagrams && sent != 0) {
            if (!quiet) quiet = base::Deadline::after(over_after);
            if (quiet->expired()) break;
        }
        if ((turn & 1023U) == 0) pair.check(turn);
    }
    shared.arrived.store(arrived + 1, std::memory_order_release);
    until_published([&] { (void)side.take(); });
    pair.meet();
}

}  // namespace

StreamResult measure_uncredited(const FlowCase& chosen, Uncredited way) {
    if (way == Uncredited::datagrams && chosen.item_bytes > longest_datagram) {
        throw base::Error{base::ErrorCode::invalid_argument, "measure sends without credit",
                          fmt::format("datagrams of {} bytes", chosen.item_bytes),
                          "one is at most a packet", "choose 1024 bytes at most"};
    }
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", chosen.device};
    StreamResult result;
    run_pair(
        {.shared_bytes = sizeof(Shared),
         .deadline = std::chrono::duration_cast<std::chrono::milliseconds>(chosen.limit) +
                     std::chrono::seconds{30}},
        [&](Pair& pair) {
            Side side{accept_second(pair,
                                    [](const auto& address) {
                                        return connect::Listener::listen(address, link_options());
                                    }),
                      chosen, way, sends};
            result = produce(pair, side, chosen, way);
            return 0.0;
        },
        [&](Pair& pair) {
            Side side{connect::connect(address_of_first(pair), link_options(), patience()), chosen,
                      way, chosen.receive_pool};
            consume(pair, side, chosen, way);
        });
    return result;
}

}  // namespace millrace::bench
