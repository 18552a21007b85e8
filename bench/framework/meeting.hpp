// How the two sides of a measurement find each other: the first listens on a port of the loopback
// that the system chooses and tells it to the second. Used by every bar over connect/.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "millrace/base/deadline.hpp"
#include "millrace/connect/address.hpp"
#include "pair.hpp"

namespace millrace::bench {

/// Ends what has failed; no measurement comes near it.
[[nodiscard]] inline base::Deadline patience() {
    return base::Deadline::after(std::chrono::seconds{20});
}

/// First side: `listen(address)` gives a listener, which accepts one.
template <class Listen>
auto accept_second(Pair& pair, Listen&& listen) {
    auto listener = listen(connect::Address::tcp("127.0.0.1", 0));
    pair.set_value(0, listener.address().port());
    pair.meet();
    return listener.accept(patience());
}

/// Second side: where the first one listens.
[[nodiscard]] inline connect::Address address_of_first(Pair& pair) {
    pair.meet();
    return connect::Address::tcp("127.0.0.1", static_cast<std::uint16_t>(pair.value(0)));
}

}  // namespace millrace::bench
