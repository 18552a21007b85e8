// Awaitable forms of a flow queue's waiting operations, for coroutines (base/coroutine.hpp). The
// same answers as those, after the same try_ calls; the thread is others' meanwhile. Of one end
// there is one operation under way at a time; what is passed by reference lives as long as it.
//
//     while (co_await flow::dequeue(consumer, item, deadline) == Status::ok) …
#pragma once

#include "millrace/base/coroutine.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/status.hpp"
#include "millrace/connect/coroutine.hpp"
#include "millrace/flow/connector.hpp"
#include "millrace/flow/listener.hpp"
#include "millrace/ring/design.hpp"

namespace millrace::flow {

namespace detail {

/// A waiting call asked as one that does not wait.
[[nodiscard]] inline base::Status not_yet_if_late(base::Status status) noexcept {
    return status == base::Status::timed_out ? base::Status::full : status;
}

}  // namespace detail

/// `producer`: a Producer or AnyProducer; `item`: what its try_enqueue takes.
template <class End, class Item>
    requires requires(End& end, const Item& item) { end.try_enqueue(item); }
[[nodiscard]] auto enqueue(End& producer, const Item& item, const base::Deadline& deadline) {
    return base::until_done(
        producer, [&producer, &item] { return producer.try_enqueue(item); }, deadline);
}

/// Until all that was enqueued has been delivered.
template <class End>
[[nodiscard]] auto flush(End& producer, const base::Deadline& deadline) {
    return base::until_done(
        producer,
        [&producer] { return detail::not_yet_if_late(producer.flush(base::Deadline::now())); },
        deadline);
}

/// Flushes and says goodbye.
template <class End>
    requires requires(End& end) { end.close(base::Deadline::now()); }
[[nodiscard]] auto close(End& producer, const base::Deadline& deadline) {
    return base::until_done(
        producer,
        [&producer] { return detail::not_yet_if_late(producer.close(base::Deadline::now())); },
        deadline);
}

/// `consumer`: a Consumer or AnyConsumer; `item`: where its try_dequeue puts one.
template <class End, class Item>
    requires requires(End& end, Item& item) { end.try_dequeue(item); }
[[nodiscard]] auto dequeue(End& consumer, Item& item, const base::Deadline& deadline) {
    return base::until_done(
        consumer, [&consumer, &item] { return consumer.try_dequeue(item); }, deadline);
}

/// The next item where it lies, until release().
template <class End, class Item>
    requires requires(End& end, Item& item) { end.peek(item); }
[[nodiscard]] auto peek(End& consumer, Item& item, const base::Deadline& deadline) {
    return base::until_done(
        consumer, [&consumer, &item] { return consumer.peek(item); }, deadline);
}

/// connect::Accepted<End> of the next peer that fits: `flow::accept<flow::Consumer<Item>>(…)`.
template <class End>
[[nodiscard]] base::Task<connect::Accepted<End>> accept(Listener& listener,
                                                        const base::Deadline& deadline) {
    return connect::accept_by<End>(
        listener, [&listener] { return End::try_accept(listener); }, deadline);
}
/// As the one before, of AnyProducer or AnyConsumer.
template <class End>
[[nodiscard]] base::Task<connect::Accepted<End>> accept(ring::Design design, Listener& listener,
                                                        const base::Deadline& deadline) {
    return connect::accept_by<End>(
        listener, [design, &listener] { return End::try_accept(design, listener); }, deadline);
}

/// connect::Accepted<End> of a connector that has connected. Throws what try_connect throws.
/// Connector::wait with Deadline::now() tells how far one came whose time was over.
template <class End>
[[nodiscard]] base::Task<connect::Accepted<End>> connect(Connector<End>& connector,
                                                         const base::Deadline& deadline) {
    return connect::accept_by<End>(
        connector, [&connector] { return connector.try_connect(); }, deadline);
}

}  // namespace millrace::flow
