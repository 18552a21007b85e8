// The wire of a process that opens the device: turned on or not, and which. Entries of
// millrace/soft/wire.hpp. Called by current_process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace millrace::soft {

class Process;
class WirePort;

/// What `turn_wire_on` was called with, as an IPv4 address, or 0; nothing: it was not called.
[[nodiscard]] std::optional<std::uint32_t> wire_turned_on_at() noexcept;

/// The process has opened the device, with that port or, null, without the wire. Before anybody
/// else knows the process.
void give_wire(const std::shared_ptr<Process>& process, std::shared_ptr<WirePort> port);

}  // namespace millrace::soft
