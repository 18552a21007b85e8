// What Producer and Consumer have in common with every item type: making a link and a ring end
// over it, statistics pages, explanations. Not for use by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "millrace/base/deadline.hpp"
#include "millrace/base/statistics.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/stats.hpp"
#include "millrace/ring/receiver.hpp"
#include "millrace/ring/sender.hpp"

namespace millrace::flow {

/// The item type of queues of framed bytes: any number of bytes per item, also none.
struct Bytes {};

/// What can be an item as it is: no pointers are followed, no constructors run.
template <class T>
concept PlainItem = std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T> &&
                    !std::is_same_v<T, Bytes> && alignof(T) <= 4096;

namespace detail {

/// An open endpoint and a link made through it.
struct Connection {
    std::shared_ptr<connect::Endpoint> endpoint;
    connect::Link link;
};
[[nodiscard]] Connection connect_link(const connect::Address& address, Options& options,
                                      const base::Deadline& deadline);
[[nodiscard]] Connection accept_link(Listener& listener, const base::Deadline& deadline);
/// Listens for one peer and then no more: whoever comes later finds nobody listening.
[[nodiscard]] Connection accept_one(const connect::Address& address, Options& options,
                                    const base::Deadline& deadline);
[[nodiscard]] ring::RingOptions ring_options(const Options& options, std::size_t item_size,
                                             std::size_t item_alignment);

[[nodiscard]] base::StatisticsPage producer_page(std::string_view name);
[[nodiscard]] base::StatisticsPage consumer_page(std::string_view name);
void show(base::StatisticsPage& page, const ProducerStats& stats) noexcept;
void show(base::StatisticsPage& page, const ConsumerStats& stats) noexcept;

[[nodiscard]] std::string explain(ring::Role role, ring::Design design, const ring::Terms& terms,
                                  const connect::Link& link, const Options& options,
                                  std::string_view failure);

/// Every so many items the statistics page is brought up to date.
inline constexpr std::uint64_t items_per_show = 4096;

}  // namespace detail
}  // namespace millrace::flow
