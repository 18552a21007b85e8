// How servers are made: what their options may be, how they find clients that have written, and
// what they have before they listen.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "channel/setup.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/ring/carrier.hpp"
#include "protection.hpp"
#include "server/state.hpp"

namespace millrace::message {

namespace {

constexpr std::uint32_t most_clients = 65'536;
constexpr std::uint32_t most_shared_receives = 32'768;
/// From so many clients on a server that was given no polling looks at bytes.
constexpr std::uint32_t dense_from_store = 128;
constexpr std::uint32_t dense_from_post = 512;

/// Of clients, and of peers that are on their way in.
[[nodiscard]] std::size_t places_of(const ServerOptions& options) noexcept {
    constexpr std::size_t joining = 64;
    return options.max_clients + joining;
}

void check(const ServerOptions& options) {
    const auto refuse = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a message server",
                          std::move(what), std::move(why), std::move(remedy)};
    };
    if (options.max_clients == 0 || options.max_clients > most_clients) {
        refuse(fmt::format("a budget of {} clients", options.max_clients),
               fmt::format("it is from 1 to {}", most_clients),
               "use the default of 1024, or more servers");
    }
    if (options.tuning.max_window == 0 || options.tuning.max_window > largest_window) {
        refuse(fmt::format("a window of {} requests", options.tuning.max_window),
               fmt::format("it is from 1 to {}", largest_window), "use the default of 1024");
    }
    check_slots("make a message server", options.tuning.slot_bytes);
    constexpr std::size_t least_shared = std::size_t{4} << 10;
    constexpr std::size_t most_shared = std::size_t{1} << 30;
    if (options.polling == Polling::shared &&
        (options.tuning.shared_bytes < least_shared || options.tuning.shared_bytes > most_shared ||
         !std::has_single_bit(options.tuning.shared_packets) ||
         options.tuning.shared_packets > 64)) {
        refuse(fmt::format("a shared buffer of {} bytes, {} packets of each client",
                           options.tuning.shared_bytes, options.tuning.shared_packets),
               "it has from 4 KiB to 1 GiB, and they are a power of two from 1 to 64",
               "use the defaults of 4 MiB and 8");
    }
    if (options.polling == Polling::shared && options.tuning.receives == Receives::shared) {
        refuse("requests by a shared buffer and by shared receives",
               "clients by rc send them by the one or the other", "leave one of the two out");
    }
    if (options.acceptor.has_value() && options.tuning.receives == Receives::shared) {
        refuse("an acceptor, and receives that all clients share",
               "these receives are the serving thread's", "leave one of the two out");
    }
    const bool has_pool = options.tuning.receives == Receives::shared ||
                          options.transports.has(connect::Transport::ud);
    if (has_pool && (options.tuning.shared_receives < 16 ||
                     options.tuning.shared_receives > most_shared_receives)) {
        refuse(fmt::format("{} receives for all clients", options.tuning.shared_receives),
               fmt::format("they are from 16 to {}", most_shared_receives),
               "use the default of 1024");
    }
    if (options.tuning.scan.has_value() && !is_available(*options.tuning.scan)) {
        refuse(fmt::format("a scan of mailboxes by {}", name_of(*options.tuning.scan)),
               "this build or this processor has no such instructions",
               "leave it out: the fastest that there is will be taken");
    }
    // Larger messages than rings are put together.
    if (options.max_request_bytes > largest_ring) {
        refuse(fmt::format("requests of up to {} bytes", options.max_request_bytes),
               fmt::format("they have at most {}", largest_ring), "send the rest in another one");
    }
}

ChannelOptions channel_options_of(const ServerOptions& options) {
    ChannelOptions chosen;
    chosen.ring_bytes = options.ring_bytes;
    chosen.max_peer_ring_bytes = options.tuning.max_client_ring_bytes;
    chosen.wait = options.wait;
    if (options.transports.has_rdma()) {
        chosen.endpoint =
            options.endpoint != nullptr ? options.endpoint : connect::Endpoint::shared();
    }
    chosen.carrier = options.tuning.carrier;
    chosen.posting = options.tuning.posting;
    chosen.admission = options.admission;
    return chosen;
}

}  // namespace

const Service server_service{"message server", 5};

Server::State::State(Foundation foundation, connect::Listener listener, ServerOptions chosen,
                     Polling polling, std::string why, std::shared_ptr<Crowd> its_crowd,
                     std::uint32_t number)
    : options{std::move(chosen)},
      channel_options{channel_options_of(options)},
      crowd{std::move(its_crowd)},
      why_polling{std::move(why)},
      arrivals{*this, std::move(foundation.receives), std::move(foundation.hosts),
               places_of(options)},
      hub{connect::Hub::Options{.wait = base::WaitPolicy::blocking()}},
      places{places_of(options), number},
      turns{polling, places_of(options),
            channel_options.endpoint != nullptr && !options.admission.own_domains
                ? &channel_options.endpoint->protection_domain()
                : nullptr,
            options.tuning.scan.value_or(best_scan_kernel()), places},
      announced{*this, places_of(options)},
      answering{*this, hub, places_of(options)},
      put_off{*this},
      rest{*this, places_of(options)},
      clients{*this, std::move(listener)},
      statistics{"message server", figures_of_servers()} {
    arrivals.join_hub();
    clients.begin();
}

Server::State::~State() { clients.end(); }

Server Server::listen(const connect::Address& address, ServerOptions options) {
    const auto anywhere = [](std::size_t) { return std::vector<int>{}; };
    return std::move(listen_together(address, options, 1, anywhere).front());
}

namespace {

/// What a server listens with, and what it has before it does.
struct Made {
    Made(const ServerOptions& options, const ChannelOptions& channel,
         const std::shared_ptr<HeldBytes>& held)
        : link{link_options(channel,
                            {std::string{options.tuning.service}, server_service.version})},
          foundation{nullptr, LaneHosts{options, link, held}} {
        link.protocol = options.protocol;
        link.accepted = options.transports;
        const Tuning& tuning = options.tuning;
        if (tuning.receives == Receives::shared) {
            foundation.receives =
                std::make_unique<SharedReceives>(*channel.endpoint, tuning.shared_receives,
                                                 std::min(tuning.slot_bytes, options.ring_bytes));
            link.receive_queue = &foundation.receives->completions();
            link.shared_receives = &foundation.receives->queue();
        } else if (tuning.requests_by_send) {
            link.max_receive_requests = std::max(
                link.max_receive_requests, receives_for(options.ring_bytes, tuning.slot_bytes));
        }
    }
    connect::LinkOptions link;
    Foundation foundation;
};

/// Calls it in a thread on one of `cores`; here, if there are none.
template <class Call>
void run_on(const std::vector<int>& cores, Call&& call) {
    if (cores.empty()) return call();
    std::exception_ptr thrown;
    std::thread{[&] {
        try {
            base::bind_this_thread(cores);
            call();
        } catch (...) {
            thrown = std::current_exception();
        }
    }}.join();
    if (thrown != nullptr) std::rethrow_exception(thrown);
}

struct Chosen {
    Polling polling;
    std::string why;
};
/// Of a server that shares its clients with `servers - 1` others.
[[nodiscard]] Chosen choose_polling(const ServerOptions& options, const ChannelOptions& channel,
                                    std::size_t servers) {
    if (options.polling == Polling::shared) {
        return {Polling::dense,
                "it was asked to: it scans offsets into a shared buffer, and sets the byte of each "
                "client of whom it finds one"};
    }
    if (options.polling != Polling::automatic) return {options.polling, "it was asked to"};
    if (options.tuning.receives == Receives::shared) {
        return {Polling::dense, "completions of the shared receive queue set a byte"};
    }
    if (!options.transports.has(connect::Transport::rc)) {
        return {Polling::dense,
                "no client writes into its memory: it sets the byte of each one that it is told "
                "of"};
    }
    const bool stores = ring::PeerMemory::may_store(channel.endpoint->context(), channel.carrier);
    const std::uint32_t from = stores ? dense_from_store : dense_from_post;
    const std::size_t clients = (options.max_clients + servers - 1) / servers;
    return {clients < from ? Polling::flag : Polling::dense,
            fmt::format("it may have {} clients, and bytes are measured to be cheaper from {} on",
                        clients, from)};
}

}  // namespace

std::vector<Server> Server::listen_together(
    const connect::Address& address, const ServerOptions& chosen, std::size_t count,
    const std::function<std::vector<int>(std::size_t)>& where) {
    ServerOptions options = chosen;
    check(options);
    check_transports(options);
    check_protection(options);
    if (options.protection == Protection::domains) options.admission.own_domains = true;
    const ChannelOptions channel = channel_options_of(options);
    message::check(channel);
    options.endpoint = channel.endpoint;
    // One request finds room at all events.
    constexpr std::size_t rest_of_gulp = std::size_t{128} << 10;
    const auto held = std::make_shared<HeldBytes>(
        std::max(options.max_held_bytes, options.max_request_bytes + rest_of_gulp));
    std::vector<Made> made;
    std::vector<connect::LinkOptions> links;
    for (std::size_t number = 0; number < count; ++number) {
        run_on(where(number), [&] { made.emplace_back(options, channel, held); });
        links.push_back(made.back().link);
    }
    std::vector<connect::Listener> listeners =
        connect::Listener::listen_together(address, std::move(links));
    const Chosen polling = choose_polling(options, channel, count);
    const auto crowd = std::make_shared<Crowd>(options.max_clients, held);
    std::vector<Server> servers;
    for (std::size_t number = 0; number < count; ++number) {
        std::unique_ptr<State> state;
        const std::vector<int> cores = where(number);
        ServerOptions own = options;
        // Not on the one core of the thread that it is to leave alone.
        if (own.acceptor.has_value() && own.acceptor->cores.empty() && cores.size() == 1) {
            own.acceptor->cores = base::available_cores();
        }
        run_on(cores, [&] {
            state = std::make_unique<State>(
                std::move(made[number].foundation), std::move(listeners[number]), std::move(own),
                polling.polling, polling.why, crowd, static_cast<std::uint32_t>(number));
        });
        servers.push_back(Server{std::move(state)});
    }
    return servers;
}

}  // namespace millrace::message
