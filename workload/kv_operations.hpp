// Every operation of a load as a line of CSV, as work 002's benchmark keeps them (section 3.3,
// appendix A.1.2). Called by `millrace kv bench --save` and by the study of that work.
#pragma once

#include <string>

#include "kv_load.hpp"

namespace millrace::workload {

/// Lines "client,command,begin_us,end_us" below one that says so; a client's are in their order.
/// Times count from when the clients began. Throws Error: the file cannot be written, or its disk
/// is full.
void write_operations(const KvLoadResult& result, const std::string& path);

}  // namespace millrace::workload
