// The requests that a dispatcher has for one server in one turn, by post, in the two ways in which
// they can get there. Called by millrace-instructions.
#pragma once

#include <string_view>

namespace millrace::bench {

/// "frames-copied-4096": 16 requests of so many bytes are copied side by side, and go by one WRITE,
/// as message::Dispatcher does. "frames-gathered-4096": each one goes from where its port has laid
/// it, in registered memory, by a WRITE of its own that gathers head, payload and mark; one
/// doorbell for all 16. False: it has another name. Throws Error.
[[nodiscard]] bool count_frames(std::string_view operation);

}  // namespace millrace::bench
