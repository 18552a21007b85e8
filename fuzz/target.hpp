// What a fuzzer of this folder is, whoever drives it: libFuzzer, or replay.cpp in the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <unistd.h>

// The two names are libFuzzer's.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace millrace::fuzz {

/// A rule that must hold whatever the peer does. Ends the program where it does not.
inline void require(bool holds, const char* rule) noexcept {
    if (holds) return;
    std::fprintf(stderr, "broken: %s\n", rule);
    std::abort();
}

/// The soft device that this process opens from now on meets nobody else's, and is quiet unless
/// MILLRACE_LOG says something else.
inline void use_own_fabric() {
    ::setenv("MILLRACE_FABRIC", ("fuzz-" + std::to_string(::getpid())).c_str(), 1);
    if (std::getenv("MILLRACE_LOG") == nullptr) ::setenv("MILLRACE_LOG", "off", 1);
}

}  // namespace millrace::fuzz
