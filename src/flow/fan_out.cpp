// The parts of FanOut that know nothing of items.
#include "millrace/flow/fan_out.hpp"

#include "millrace/base/error.hpp"

namespace millrace::flow::detail {

RoomWaiter::RoomWaiter(base::WaitPolicy policy)
    : policy_{policy}, hub_{connect::Hub::Options{.wait = base::WaitPolicy::blocking()}} {}

void RoomWaiter::rest(const base::Deadline& deadline) {
    hub_.adopt();
    (void)hub_.rest(deadline);
    (void)hub_.turn();
}

void no_consumers() {
    throw base::Error{base::ErrorCode::invalid_argument, "connect a fan-out", "no address",
                      "it needs at least one consumer", "name the address of each consumer"};
}

}  // namespace millrace::flow::detail
