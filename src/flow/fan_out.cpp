// The parts of FanOut that know nothing of items.
#include "millrace/flow/fan_out.hpp"

#include "millrace/base/error.hpp"

namespace millrace::flow::detail {

void no_consumers() {
    throw base::Error{base::ErrorCode::invalid_argument, "connect a fan-out", "no address",
                      "it needs at least one consumer", "name the address of each consumer"};
}

}  // namespace millrace::flow::detail
