// What Producer and Consumer have in common with every item type: making a link and a ring end
// over it, statistics pages, explanations. Not for use by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/base/detail/holds_address.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/connect/accepting.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/filter.hpp"
#include "millrace/flow/item_name.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/receiver.hpp"
#include "millrace/ring/sender.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::flow {

/// The item type of queues of framed bytes: any number of bytes per item, also none.
struct Bytes {};

/// What can be an item as it is: no pointers are followed, no constructors run.
template <class T>
concept PlainItem = std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T> &&
                    !std::is_same_v<T, Bytes> && !detail::is_filtered<T> && alignof(T) <= 4096 &&
                    !base::holds_address<T>;

namespace detail {

template <>
[[nodiscard]] inline ItemFacts item_facts<Bytes>() {
    return {};
}

/// An open endpoint and a link made through it.
struct Connection {
    std::shared_ptr<connect::Endpoint> endpoint;
    connect::Link link;
    ring::Setup setup{};
};
/// What a link is asked for. Refuses options that no peer could make work: throws Error.
[[nodiscard]] connect::LinkOptions connecting_options(Options& options, ring::Design design,
                                                      const ItemFacts& item);
/// As that; then connects.
[[nodiscard]] Connection connect_link(const connect::Address& address, Options& options,
                                      ring::Design design, const ItemFacts& item,
                                      const base::Deadline& deadline);
/// Of an end that waits for one peer and has no listener to ask: the port that the system chose for
/// port 0 is told by the log (warn).
[[nodiscard]] Listener listen_for_one(const connect::Address& address, Options options);
void tell_chosen_port(const connect::Address& asked, const connect::Address& address);
/// `make(Connection, const base::Deadline&)` of the first peer that it succeeds for.
template <class Make>
[[nodiscard]] auto accept_end(Listener& listener, ring::Design design, const ItemFacts& item,
                              const base::Deadline& deadline, Make&& make) {
    ring::check(listener.options().ring, item, design);
    return connect::accept_until_set_up(
        listener.links(), deadline, [&](connect::Link link, const base::Deadline& patience) {
            auto endpoint = link.shared_endpoint();
            return make(Connection{std::move(endpoint), std::move(link)}, patience);
        });
}

/// As accept_end, but never waits: none, if there is no peer whose setup can begin.
template <class Make>
[[nodiscard]] auto try_accept_end(Listener& listener, ring::Design design, const ItemFacts& item,
                                  Make&& make) {
    ring::check(listener.options().ring, item, design);
    return connect::try_accept_set_up(listener.links(), [&](connect::Link link) {
        auto endpoint = link.shared_endpoint();
        return make(
            Connection{std::move(endpoint), std::move(link), {.joining = ring::Joining::later}});
    });
}

/// How every end is made, whatever its items: mixed into `End`, which has a constructor from a
/// Connection. The `_as` functions run D's flows as `design` says, which is
/// known at run time only: AnyProducer and AnyConsumer use them.
template <class End, ring::Design D, class T>
class Factories {
    static_assert(ring::check_design<D>());

  public:
    /// Connects to an other end that listens. Throws Error.
    [[nodiscard]] static End connect(const connect::Address& address, Options options,
                                     const base::Deadline& deadline) {
        return connect_as(D, address, std::move(options), deadline);
    }
    /// Takes the next other end that fits; others are told why not, logged and passed over. Throws
    /// Error (timed_out, cancelled; invalid_argument for the listener's options).
    [[nodiscard]] static End accept(Listener& listener, const base::Deadline& deadline) {
        return accept_as(D, listener, deadline);
    }
    /// The end for the next peer that has connected to the listener, or none yet. Never blocks: the
    /// peer's last word may come later; until then try_ calls answer `full` or `empty`. Throws
    /// Error. See Listener::descriptor.
    [[nodiscard]] static std::optional<End> try_accept(Listener& listener) {
        return try_accept_as(D, listener);
    }
    /// Listens for one other end, and then no more. Throws Error. Of port 0 the log tells which one
    /// it is (warn); a program that wants to know has a Listener, and its address().
    [[nodiscard]] static End listen(const connect::Address& address, Options options,
                                    const base::Deadline& deadline) {
        Listener listener = listen_for_one(address, std::move(options));
        return accept(listener, deadline);
    }

    /// Over a link that was made already, by a structure whose ends have more than one, or by a
    /// Connector.
    [[nodiscard]] static End over(Connection connection, Options options,
                                  const base::Deadline& deadline) {
        return over_as(D, std::move(connection), std::move(options), deadline);
    }
    [[nodiscard]] static End over_as(ring::Design design, Connection connection, Options options,
                                     const base::Deadline& deadline) {
        return End{std::move(connection), design, std::move(options), deadline};
    }
    /// For a Connector: what an end says of itself before it is made.
    static constexpr ring::Design made_for = D;
    [[nodiscard]] static ItemFacts its_items() { return item_facts<T>(); }

    [[nodiscard]] static End connect_as(ring::Design design, const connect::Address& address,
                                        Options options, const base::Deadline& deadline) {
        auto connection = connect_link(address, options, design, item_facts<T>(), deadline);
        return End{std::move(connection), design, std::move(options), deadline};
    }
    [[nodiscard]] static std::optional<End> try_accept_as(ring::Design design, Listener& listener) {
        return try_accept_end(listener, design, item_facts<T>(), [&](Connection connection) {
            return End{std::move(connection), design, listener.options(),
                       base::Deadline::after(connect::setup_patience)};
        });
    }
    [[nodiscard]] static End accept_as(ring::Design design, Listener& listener,
                                       const base::Deadline& deadline) {
        return accept_end(
            listener, design, item_facts<T>(), deadline,
            [&](Connection connection, const base::Deadline& patience) {
                return End{std::move(connection), design, listener.options(), patience};
            });
    }
};

/// A consumer's items, with the filter that its options ask for: as long as this and they live.
struct Asking {
    Asking(const ItemFacts& item, const Options& options)
        : asked{options.filter.asked()}, facts{item} {
        if (!options.filter.is_none()) facts.filter = &asked;
    }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;
    ring::FilterAsked asked;
    ItemFacts facts;
};
/// Throws Error (invalid_argument) if they ask for a filter.
[[nodiscard]] Options of_producer(Options options);

[[nodiscard]] base::StatisticsPage producer_page(std::string_view name);
[[nodiscard]] base::StatisticsPage consumer_page(std::string_view name);
void show(base::StatisticsPage& page, const ProducerStats& stats) noexcept;
void show(base::StatisticsPage& page, const ConsumerStats& stats) noexcept;
/// Of a consumer's release(), in the log.
void warn_of_stray_release(const std::string& peer) noexcept;
void warn_of_forgotten_release(const std::string& peer, std::uint32_t times) noexcept;

[[nodiscard]] std::string explain(ring::Role role, ring::Design design, const ring::Terms& terms,
                                  const connect::Link& link, const Options& options,
                                  const ring::PeerMemory& memory, std::string_view failure);

/// Every so many items the statistics page is brought up to date.
inline constexpr std::uint64_t items_per_show = 4096;

}  // namespace detail
}  // namespace millrace::flow
