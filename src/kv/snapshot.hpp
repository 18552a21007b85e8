// All items of a store in a file, and back. Written aside and renamed, so that under its name there
// is a whole one or none; checked before the first item of it is set. Used by Saves and Server.
//
//     head    "MRKVSNAP" | format 4 | byte order 4 | written at 8
//     item    key length 4 | value length 4 | expires at 8 | note 8 | key | value
//     end     0 4 | 0 4 | items 8 | checksum 8
//
// Numbers are as this machine has them; times are nanoseconds of Unix time, 0: never. The checksum
// is XXH3's of each piece, begun with that of all before it. An item whose key length has its
// highest bit set may be in the file before that, too: the last one counts (format 1 has none).
//
// While others change the store, an item may move from where the writer has not been to where it
// has been. So what has changed during a walk over all items is written once more, by further
// walks, and what has changed during the last of these while nobody is served.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/kv/detail/function_ref.hpp"
#include "millrace/kv/server.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {

/// How many items were written. What changes meanwhile is in it as it was, as it is, or not. Throws
/// Error (system, permission, resource_exhausted, …), and the file is what it was.
std::uint64_t write_snapshot(const Store& store, const std::string& path);

/// The same while others change the store: every item that is there all the while is in it, as it
/// was at some moment meanwhile. `alone(last)` is called once: it has `last` called while nobody
/// changes the store, by any thread, and returns false if it has not. `goes_on()` is asked now and
/// then. None: one of them said no, and the file is what it was.
std::optional<std::uint64_t> write_snapshot_beside(const Store& store, const std::string& path,
                                                   FunctionRef<bool(FunctionRef<void()>)> alone,
                                                   FunctionRef<bool()> goes_on);

/// Nothing, if there is no such file. Throws Error, and the store is what it was: it cannot be
/// read; invalid_argument: it is no snapshot, or not what was written.
SnapshotRead read_snapshot(Store& store, const std::string& path);

}  // namespace millrace::kv
