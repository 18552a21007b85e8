// Included by the copies of src/ring that tests/mutants/CMakeLists.txt plants mistakes in; nothing
// that is shipped knows of it.
#pragma once

#include <cstdlib>
#include <cstring>

namespace millrace::test {

/// True if MILLRACE_TEST_FAULT names this fault.
inline bool wrong(const char* fault) {
    const char* const chosen = std::getenv("MILLRACE_TEST_FAULT");
    return chosen != nullptr && std::strcmp(chosen, fault) == 0;
}

}  // namespace millrace::test
