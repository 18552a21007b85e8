// Has the program's librdmacm speak with the soft device's connection manager (src/cm) in place of
// the kernel's: its calls of open, fstat, write and close go through slots of its own, which are
// bound to functions here. No other library's calls change. Called by ibv_get_device_list, which
// librdmacm calls before it opens anything.
//
// Why not by the preloaded library: docs/decisions/0024-librdmacm-by-its-slots.md.
#pragma once

namespace millrace::ibverbs {

/// Binds the slots of each librdmacm that the program has loaded by now and that is not bound yet,
/// where MILLRACE_CM, or the want of the kernel's own, says so. Any thread.
void bind_connection_manager() noexcept;

}  // namespace millrace::ibverbs
