#include "measure_echo.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "bench/framework/environment_scope.hpp"
#include "bench/framework/meeting.hpp"
#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "bench/framework/windows.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/soft/cable_facts.hpp"
#include "millrace/verbs/datagram.hpp"

namespace millrace::bench {
namespace {

constexpr std::uint32_t key = 0x1ace;       ///< Q_Key of the datagrams
constexpr std::uint32_t most_inline = 256;  ///< bytes
constexpr std::uint64_t send_slots = 128;
constexpr std::uint32_t receives = 16;
constexpr std::size_t largest = 65536;
constexpr std::size_t places = 64;  ///< that a sender chooses from

[[nodiscard]] bool is_read(Way way) {
    return way == Way::read_memory || way == Way::read_completion;
}
[[nodiscard]] bool has_receives(Way way) {
    return way == Way::send || way == Way::immediate_alone || way == Way::write_immediate ||
           way == Way::place_immediate;
}
[[nodiscard]] bool has_places(Way way) { return way >= Way::place_immediate; }

/// How this side is reached, as the other is told.
struct Facts {
    verbs::QueuePairAddress queue_pair{};
    verbs::RemoteAddress memory{};
};

/// Where things lie in a side's memory. Two places for messages that come, as an echo may be
/// written while the one before it is still compared; and as many for those that go as fit in a
/// processor's cache, as one may only be changed when its completion has been polled.
class Layout {
  public:
    Layout(Way way, std::size_t bytes)
        : slot_{std::max<std::size_t>((bytes + 63) / 64 * 64, 64)},
          slots_{has_places(way) ? places : 2},
          going_{std::clamp<std::size_t>((std::size_t{256} << 10) / slot_, 2, send_slots / 4)} {}
    [[nodiscard]] std::size_t going() const { return going_; }
    /// The word that says where a message was put; a line of its own.
    static constexpr std::size_t place = 0;
    [[nodiscard]] std::size_t incoming(std::uint64_t slot) const { return 64 + slot * slot_; }
    [[nodiscard]] std::size_t outgoing(std::uint64_t number) const {
        return 64 + (slots_ + number % going_) * slot_;
    }
    /// Datagrams have a header before them.
    [[nodiscard]] std::size_t receive(std::uint64_t number) const {
        return 64 + (slots_ + going_) * slot_ +
               number % receives * (slot_ + verbs::datagram_header_bytes);
    }
    [[nodiscard]] std::size_t receive_bytes() const { return slot_ + verbs::datagram_header_bytes; }
    [[nodiscard]] std::size_t all() const { return receive(receives - 1) + receive_bytes(); }
    /// Spread over the memory, as rand() does in the work's listing 3.3; both sides need not agree.
    [[nodiscard]] std::uint64_t chosen(std::uint64_t number) const {
        return (number * 0x9e3779b97f4a7c15U >> 32) % slots_;
    }

  private:
    std::size_t slot_;
    std::size_t slots_;
    std::size_t going_;
};

/// One side: a queue pair of the type that is measured, and its memory. The link carries the
/// addresses, and tells if the other side dies.
class Side {
  public:
    Side(connect::Link link, const EchoCase& chosen)
        : chosen_{chosen},
          moves_link_{soft::cable_facts(chosen.mode).shaped},
          layout_{chosen.way, chosen.bytes},
          link_{std::move(link)},
          memory_{link_.protection_domain().allocate(
              layout_.all(), verbs::Access::remote_write | verbs::Access::remote_read)},
          channel_{context().create_completion_channel()},
          sent_{context().create_completion_queue(1024)},
          received_{context().create_completion_queue(256, &channel_)} {
        verbs::QueuePairOptions options;
        options.send_queue = &sent_;
        options.receive_queue = &received_;
        options.max_send_requests = send_slots;
        options.max_receive_requests = receives;
        options.max_inline = most_inline;
        connect::Endpoint& endpoint = link_.endpoint();
        const ibv_port_attr port = context().port(endpoint.port());
        verbs::PathOptions path;
        path.port = endpoint.port();
        path.gid_index = endpoint.gid_index();
        path.mtu = port.active_mtu;
        Facts mine{.queue_pair = {.lid = port.lid}, .memory = memory_.remote()};
        if (path.gid_index >= 0) {
            mine.queue_pair.has_gid = true;
            mine.queue_pair.gid = context().gid(path.port, path.gid_index);
        }
        if (is_datagram()) {
            datagrams_ = link_.protection_domain().create_datagram_queue_pair(options);
            datagrams_.start(path.port, key);
            mine.queue_pair.number = datagrams_.number();
        } else {
            options.type = chosen.transport == Transport::reliable ? IBV_QPT_RC : IBV_QPT_UC;
            connected_ = link_.protection_domain().create_queue_pair(options);
            connected_.initialise(path.port,
                                  verbs::Access::remote_write | verbs::Access::remote_read);
            mine.queue_pair.number = connected_.number();
        }
        const auto answer = link_.exchange(std::as_bytes(std::span{&mine, 1}), patience());
        require(answer.size() == sizeof peer_, "the peer's address");
        std::memcpy(&peer_, answer.data(), sizeof peer_);
        if (is_datagram()) {
            way_ = link_.protection_domain().create_address_handle(peer_.queue_pair, path);
        } else {
            connected_.connect(peer_.queue_pair, 0, path);
        }
        // What has no receive is lost, but for reliable ones.
        if (has_receives(chosen.way)) {
            for (std::uint64_t i = 0; i < receives; ++i) post_receive(i);
        }
        (void)link_.exchange({}, patience());
    }

    /// Sends the message of that number.
    void send(std::uint64_t number) {
        std::byte* const message = memory_.data() + layout_.outgoing(number);
        std::uint64_t& last = tickets_[number % layout_.going()];
        while (completed_ < last) take_completions();
        stamp(message, chosen_.bytes, number);
        const ibv_sge whole = slice(layout_.outgoing(number), chosen_.bytes);
        const verbs::Slices from{&whole, 1};
        const std::uint64_t slot = layout_.chosen(number);
        const auto immediate = static_cast<std::uint32_t>(number);
        switch (chosen_.way) {
            case Way::send:
                if (is_datagram()) {
                    post(datagrams_, verbs::SendTo{.from = from, .to = to()});
                } else {
                    post(connected_, verbs::Send{.from = from});
                }
                break;
            case Way::immediate_alone:
                if (is_datagram()) {
                    post(datagrams_, verbs::SendToWithImmediate{
                                         .from = {}, .to = to(), .immediate = immediate});
                } else {
                    post(connected_, verbs::SendWithImmediate{.from = {}, .immediate = immediate});
                }
                break;
            case Way::write:
            case Way::read_memory:
            case Way::read_completion:
                post(connected_, verbs::Write{.from = from, .to = incoming(number % 2)});
                break;
            case Way::write_immediate:
                post(connected_,
                     verbs::WriteWithImmediate{
                         .from = from, .to = incoming(number % 2), .immediate = immediate});
                break;
            case Way::place_immediate:
                post(connected_,
                     verbs::WriteWithImmediate{.from = from,
                                               .to = incoming(slot),
                                               .immediate = static_cast<std::uint32_t>(slot)});
                break;
            default: send_with_place(from, slot, number);
        }
        last = posted_;
    }

    /// Waits for the message of that number, and compares it.
    void receive(Pair& pair, std::uint64_t number) {
        switch (chosen_.way) {
            case Way::send: {
                const verbs::Completion completion = completed(pair, received_);
                const std::size_t header = is_datagram() ? verbs::datagram_header_bytes : 0;
                require_intact(
                    completion.bytes() == chosen_.bytes + header &&
                        stamped(memory_.data() + layout_.receive(completion.id()) + header,
                                chosen_.bytes, number),
                    "a SEND");
                post_receive(completion.id());
                break;
            }
            case Way::immediate_alone: {
                const verbs::Completion completion = completed(pair, received_);
                require_intact(completion.immediate() == static_cast<std::uint32_t>(number),
                               "immediate data");
                post_receive(completion.id());
                break;
            }
            case Way::write: wait_for_message(pair, number % 2, number); break;
            case Way::write_immediate: {
                const verbs::Completion completion = completed(pair, received_);
                require_intact(completion.immediate() == static_cast<std::uint32_t>(number) &&
                                   arrived(number % 2, number),
                               "a WRITE with immediate data");
                post_receive(completion.id());
                break;
            }
            case Way::place_immediate: {
                const verbs::Completion completion = completed(pair, received_);
                require_intact(
                    completion.immediate() < places && arrived(completion.immediate(), number),
                    "a WRITE whose immediate data says where");
                post_receive(completion.id());
                break;
            }
            case Way::place_behind:
            case Way::chained_behind:
                // Behind the message, so that this is there.
                require_intact(arrived(told_place(pair, number), number),
                               "a WRITE that another one told of");
                break;
            case Way::place_before:
            case Way::chained_before:
                wait_for_message(pair, told_place(pair, number), number);
                break;
            case Way::read_memory:
            case Way::read_completion: break;
        }
    }

    /// Brings the message that send() wrote to the other side back.
    void read_back(Pair& pair, std::uint64_t number) {
        const std::size_t here = layout_.incoming(number % 2);
        const ibv_sge into = slice(here, chosen_.bytes);
        const bool looks = chosen_.way == Way::read_memory;
        // A READ may return before the WRITE before it is done, but not ahead of it.
        post(connected_, verbs::Read{.into = {&into, 1}, .from = incoming(number % 2)}, !looks);
        if (looks) {
            wait_for_message(pair, number % 2, number);
            return;
        }
        pair.spin_until([&] {
            take_completions();
            return completed_ == posted_;
        });
        require_intact(arrived(number % 2, number), "a READ");
    }

  private:
    [[nodiscard]] verbs::Context& context() { return link_.endpoint().context(); }
    [[nodiscard]] bool is_datagram() const { return chosen_.transport == Transport::datagram; }
    [[nodiscard]] verbs::DatagramDestination to() const {
        return {&way_, peer_.queue_pair.number, key};
    }
    [[nodiscard]] verbs::RemoteAddress incoming(std::uint64_t slot) const {
        return peer_.memory + layout_.incoming(slot);
    }
    [[nodiscard]] ibv_sge slice(std::size_t offset, std::size_t bytes) const {
        return memory_.slice(offset, bytes);
    }

    void send_with_place(verbs::Slices from, std::uint64_t slot, std::uint64_t number) {
        const std::uint64_t place = number * places + slot;
        const ibv_sge word{reinterpret_cast<std::uint64_t>(&place), sizeof place, 0};
        verbs::Write message{.from = from, .to = incoming(slot)};
        verbs::Write told{.from = {&word, 1}, .to = peer_.memory + Layout::place};
        const bool chained =
            chosen_.way == Way::chained_behind || chosen_.way == Way::chained_before;
        const bool behind = chosen_.way == Way::place_behind || chosen_.way == Way::chained_behind;
        verbs::Write& first = behind ? message : told;
        verbs::Write& second = behind ? told : message;
        if (!chained) {
            post(connected_, first);
            post(connected_, second);
            return;
        }
        prepare(first, false);
        prepare(second, false);
        verbs::Batch<2> both;
        require(both.add(first) && both.add(second) && connected_.post(both) == 0,
                "two posted WRITEs");
        take_completions_now_and_then();
    }

    template <class Request>
    void prepare(Request& request, bool signaled) {
        request.id = ++posted_;
        std::size_t bytes = 0;
        if constexpr (requires { request.from.size(); }) {
            for (const ibv_sge& each : request.from) bytes += each.length;
            // A word on the stack has no region: inline, whatever is asked for.
            const bool must = bytes != 0 && request.from.front().lkey == 0;
            if (must || (chosen_.inlined && bytes <= most_inline)) {
                request.flags = request.flags | verbs::SendFlags::inlined;
            }
        }
        if (signaled || posted_ >= signal_at_) {
            signal_at_ = posted_ + layout_.going() / 2;
            request.flags = request.flags | verbs::SendFlags::signaled;
        }
    }
    template <class QueuePair, class Request>
    void post(QueuePair& queue_pair, Request request, bool signaled = false) {
        prepare(request, signaled);
        require(queue_pair.post(request) == 0, "a posted request");
        if (!signaled) take_completions_now_and_then();
    }
    /// Each says that what was posted before it is done, too.
    void take_completions() {
        std::array<verbs::Completion, 8> found;
        const int count = sent_.poll(found);
        require(count >= 0, "a poll");
        for (int i = 0; i < count; ++i) {
            require(found[static_cast<std::size_t>(i)].ok(), "a request's completion");
            completed_ = found[static_cast<std::size_t>(i)].id();
        }
    }
    /// With the message before the one that is signaled, what was signaled before it is long done.
    void take_completions_now_and_then() {
        if (posted_ + 1 >= signal_at_) take_completions();
    }

    void post_receive(std::uint64_t number) {
        const ibv_sge into = slice(layout_.receive(number), layout_.receive_bytes());
        const verbs::Receive receive{.id = number, .into = {&into, 1}};
        require((is_datagram() ? datagrams_.post(receive) : connected_.post(receive)) == 0,
                "a posted receive");
    }

    verbs::Completion completed(Pair& pair, verbs::CompletionQueue& queue) {
        verbs::Completion completion;
        const auto look = [&] {
            const int count = queue.poll({&completion, 1});
            require(count >= 0 && (count == 0 || completion.ok()), "a completion");
            return count == 1;
        };
        if (!chosen_.events) {
            pair.spin_until(look);
            return completion;
        }
        while (!look()) {
            // Armed first, looked at again then: nothing that comes between is missed.
            require(queue.arm(), "an armed completion queue");
            if (look()) return completion;
            (void)channel_.wait(std::chrono::milliseconds{50});
            pair.check(1024);
        }
        return completion;
    }

    [[nodiscard]] bool arrived(std::uint64_t slot, std::uint64_t number) {
        std::atomic_thread_fence(std::memory_order_acquire);
        return stamped(memory_.data() + layout_.incoming(slot), chosen_.bytes, number);
    }
    void wait_for_message(Pair& pair, std::uint64_t slot, std::uint64_t number) {
        pair.spin_until([&] {
            look_at_link();
            return arrived(slot, number);
        });
    }
    /// A NIC moves by itself. Takes no completion: there is none of a receive.
    void look_at_link() {
        verbs::Completion none;
        if (moves_link_) require(received_.poll({&none, 1}) == 0, "a look at the link");
    }
    [[nodiscard]] std::uint64_t told_place(Pair& pair, std::uint64_t number) {
        std::atomic_ref word{*reinterpret_cast<std::uint64_t*>(memory_.data() + Layout::place)};
        std::uint64_t told = 0;
        pair.spin_until([&] {
            look_at_link();
            told = word.load(std::memory_order_acquire);
            return told / places == number;
        });
        return told % places;
    }

    EchoCase chosen_;
    bool moves_link_;  ///< the modelled link is moved in time only by threads that call verbs
    Layout layout_;
    connect::Link link_;
    verbs::RegisteredBuffer memory_;
    verbs::CompletionChannel channel_;
    verbs::CompletionQueue sent_;
    verbs::CompletionQueue received_;
    verbs::AddressHandle way_;
    verbs::QueuePair connected_;
    verbs::DatagramQueuePair datagrams_;
    Facts peer_;
    std::uint64_t posted_ = 0;     ///< requests: their ids count from 1
    std::uint64_t completed_ = 0;  ///< up to this one
    std::uint64_t signal_at_ = 1;
    std::array<std::uint64_t, send_slots / 4> tickets_{};  ///< of the messages that lie in memory
};

void check(const EchoCase& chosen) {
    const auto refuse = [&](std::string what, const char* why) {
        throw base::Error{base::ErrorCode::invalid_argument, "measure an echo", std::move(what),
                          why, "choose another way, or another number of bytes"};
    };
    const bool datagram = chosen.transport == Transport::datagram;
    if (chosen.bytes < 4 || chosen.bytes > (datagram ? 1024 : largest)) {
        refuse(fmt::format("{} bytes", chosen.bytes), "it is out of range");
    }
    if (datagram && chosen.way != Way::send && chosen.way != Way::immediate_alone) {
        refuse("datagrams", "they have no WRITE and no READ");
    }
    if (chosen.transport == Transport::unreliable && is_read(chosen.way)) {
        refuse("an unreliable connection", "it has no READ");
    }
    if (chosen.events && !has_receives(chosen.way)) {
        refuse("completion events", "the other side has no completion");
    }
}

}  // namespace

double measure_echo(const EchoCase& chosen) {
    check(chosen);
    const EnvironmentScope mode{"MILLRACE_SOFT_MODE", chosen.mode};
    const EnvironmentScope device{"MILLRACE_DEVICE", "soft0"};
    const Windows windows{chosen.echoes};
    connect::LinkOptions options;
    options.service = "bench echo";
    return run_pair(
        {.deadline = std::chrono::seconds{60}},
        [&](Pair& pair) {
            Side side{accept_second(pair,
                                    [&](const auto& address) {
                                        return connect::Listener::listen(address, options);
                                    }),
                      chosen};
            pair.meet();
            const double ns = median_step(windows, [&](std::uint64_t number) {
                side.send(number);
                if (is_read(chosen.way)) {
                    side.read_back(pair, number);
                } else {
                    side.receive(pair, number);
                }
            });
            pair.meet();
            return ns;
        },
        [&](Pair& pair) {
            Side side{connect::connect(address_of_first(pair), options, patience()), chosen};
            pair.meet();
            if (!is_read(chosen.way)) {
                for (std::uint64_t number = 1; number <= windows.total(); ++number) {
                    side.receive(pair, number);
                    side.send(number);
                }
            }
            pair.meet();
        });
}

}  // namespace millrace::bench
