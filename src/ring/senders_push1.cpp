// The Senders of push1 data.
#include "sender_parts.hpp"

#include "millrace/ring/every_design.hpp"

namespace millrace::ring {

#define MILLRACE_SENDER(D) template class Sender<D>;
MILLRACE_PUSH1_DESIGNS(MILLRACE_SENDER)

}  // namespace millrace::ring
