// abseil's logging is initialised by a call, glog's by its first message (see log.h).
#pragma once

namespace absl {
inline void InitializeLog() {}
} // namespace absl
