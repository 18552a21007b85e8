// Requests and responses of the study of work 004 among the operations that callgrind counts.
// Called by millrace-instructions.
#pragma once

#include <string_view>

namespace millrace::bench {

/// "rpc-WriteSend-4096": requests of 64 B by WRITE (or store), responses of so many bytes by SEND.
/// Also SendWrite, WriteWrite, SendSend. False: it has another name. Throws Error.
[[nodiscard]] bool count_requests(std::string_view operation);

}  // namespace millrace::bench
