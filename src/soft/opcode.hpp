// The opcode of a work request as the program wrote it: it may be no ibv_wr_opcode at all, and then
// may not be loaded as one. For whoever looks before it is checked.
#pragma once

#include <infiniband/verbs.h>

#include <cstring>

namespace millrace::soft {

[[nodiscard]] inline unsigned raw_opcode(const ibv_send_wr& wr) noexcept {
    unsigned opcode = 0;
    static_assert(sizeof opcode == sizeof wr.opcode);
    std::memcpy(&opcode, &wr.opcode, sizeof opcode);
    return opcode;
}

}  // namespace millrace::soft
