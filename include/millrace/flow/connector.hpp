// Connecting a flow queue without waiting: an end on its way, for programs with a loop of their
// own.
//
//     flow::Connector<flow::Producer<Item>> connector{"host:7000"};
//     …                                    // in the loop, when connector.descriptor() is readable:
//     if (auto producer = connector.try_connect()) …
//
// `End` is a Producer or Consumer of any items and design, or an AnyProducer or AnyConsumer. The
// other side accepts as ever: by Listener, or a structure (FanIn, Merge, Replicator) that does.
// docs/flow.md, "Connecting without waiting".
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/connector.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/flow/options.hpp"
#include "millrace/flow/queue_end.hpp"
#include "millrace/ring/design.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::flow {

namespace detail {

/// A link on its way, until both ends have proposed what they want. Move-only.
class QueueConnector {
  public:
    QueueConnector(ring::Role role, ring::Design design, const ItemFacts& item,
                   const connect::Address& address, Options options);

    /// For an end that then waits for its peer's last word alone.
    [[nodiscard]] std::optional<Connection> try_connect();
    [[nodiscard]] Connection wait(const base::Deadline& deadline);
    [[nodiscard]] int descriptor() { return connector_.descriptor(); }

    [[nodiscard]] ring::Design design() const noexcept { return design_; }
    [[nodiscard]] const Options& options() const noexcept { return options_; }

  private:
    void propose(connect::Link link);
    [[nodiscard]] Connection finish(std::vector<std::byte> theirs);

    ring::Role role_;
    ring::Design design_;
    ItemFacts item_;
    Options options_;
    connect::Connector connector_;
    std::optional<connect::Link> link_;  ///< once it is there
    std::vector<std::byte> said_;        ///< by this end, then
};

}  // namespace detail

/// A queue on its way: cancelled by its end. Move-only; one thread at a time.
template <class End>
class Connector {
  public:
    /// Begins. Throws Error as connect::Connector; it looks up the names of hosts.
    /// invalid_argument: `options` that no peer could make work.
    explicit Connector(const connect::Address& address, Options options = {})
        requires requires { End::made_for; }
        : Connector{End::made_for, address, std::move(options)} {}
    /// Of an AnyProducer or AnyConsumer.
    Connector(ring::Design design, const connect::Address& address, Options options = {})
        : way_{End::role, design, End::its_items(), address, std::move(options)} {}

    /// The end, once it is connected, agreed on and ready for its first item; none yet. Never
    /// blocks. Not to be called again after the end or an Error. Throws Error as End::connect, but
    /// never timed_out: a peer that says nothing is waited for until this goes.
    [[nodiscard]] std::optional<End> try_connect() {
        if (!end_.has_value()) {
            std::optional<detail::Connection> connection = way_.try_connect();
            if (!connection.has_value()) return std::nullopt;
            begin(std::move(*connection));
        }
        if (!end_->has_joined()) return std::nullopt;
        return std::exchange(end_, std::nullopt);
    }
    /// The same, waiting: End::connect from here on. With Deadline::now() the error says how far it
    /// came.
    [[nodiscard]] End wait(const base::Deadline& deadline) {
        if (!end_.has_value()) begin(way_.wait(deadline));
        end_->await_join(deadline);
        return std::move(*end_);
    }
    /// For a program's own loop: readable means that try_connect has something to do.
    /// Level-triggered. Lives as long as the connector. Throws Error (resource_exhausted).
    [[nodiscard]] int descriptor() { return way_.descriptor(); }

  private:
    void begin(detail::Connection connection) {
        end_.emplace(End::over_as(way_.design(), std::move(connection), way_.options(),
                                  base::Deadline::now()));
    }

    detail::QueueConnector way_;
    std::optional<End> end_;  ///< until its peer has said its last word
};

}  // namespace millrace::flow
