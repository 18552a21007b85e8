// See wire.hpp.
#include "millrace/verbs/wire.hpp"

#include "millrace/soft/wire.hpp"

namespace millrace::verbs {

bool may_leave_out_icrc() { return soft::may_leave_out_icrc(); }
void leave_out_icrc(QueuePair& queue_pair) noexcept { soft::leave_out_icrc(queue_pair.raw()); }

}  // namespace millrace::verbs
