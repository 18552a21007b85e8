// The wire of a process that opens the device: turned on or not, and which. Entries of
// millrace/soft/wire.hpp. Called by current_process.
#pragma once

#include <memory>

namespace millrace::soft {

class Process;
class WirePort;

/// The process has opened the device, with that port or, null, without the wire. Before anybody
/// else knows the process.
void give_wire(const std::shared_ptr<Process>& process, std::shared_ptr<WirePort> port);

}  // namespace millrace::soft
