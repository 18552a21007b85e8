// The Receivers of push2 data.
#include "receiver_parts.hpp"

#include "millrace/ring/every_design.hpp"

namespace millrace::ring {

#define MILLRACE_RECEIVER(D) template class Receiver<D>;
MILLRACE_PUSH2_DESIGNS(MILLRACE_RECEIVER)

}  // namespace millrace::ring
