// A flow queue that connects without waiting, see the header.
#include "millrace/flow/connector.hpp"

namespace millrace::flow::detail {
namespace {

[[nodiscard]] Options of_role(ring::Role role, Options options) {
    return role == ring::Role::producer ? of_producer(std::move(options)) : std::move(options);
}

}  // namespace

QueueConnector::QueueConnector(ring::Role role, ring::Design design, const ItemFacts& item,
                               const connect::Address& address, Options options)
    : role_{role},
      design_{design},
      item_{item},
      options_{of_role(role, std::move(options))},
      connector_{address, connecting_options(options_, design, item)} {}

/// This end's word is said with the link.
void QueueConnector::propose(connect::Link link) {
    link_.emplace(std::move(link));
    said_ = ring::propose(*link_, role_, design_, options_.ring, Asking{item_, options_}.facts);
}

Connection QueueConnector::finish(std::vector<std::byte> theirs) {
    return {options_.endpoint,
            std::move(*link_),
            {.joining = ring::Joining::unhurried,
             .proposals = ring::Proposals{std::move(said_), std::move(theirs)}}};
}

std::optional<Connection> QueueConnector::try_connect() {
    if (!link_.has_value()) {
        std::optional<connect::Link> link = connector_.try_connect();
        if (!link.has_value()) return std::nullopt;
        propose(std::move(*link));
    }
    std::optional<std::vector<std::byte>> theirs = link_->heard();
    if (!theirs.has_value()) return std::nullopt;
    return finish(std::move(*theirs));
}

Connection QueueConnector::wait(const base::Deadline& deadline) {
    if (!link_.has_value()) propose(connector_.wait(deadline));
    return finish(link_->hear(deadline));
}

}  // namespace millrace::flow::detail
