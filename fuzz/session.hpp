// What the fuzzers share whose input is a list of steps of one session.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fuzz/input.hpp"

namespace millrace::fuzz {

/// A `Session` that is made of an Input, and run.
template <class Session>
int run_session(const std::uint8_t* data, std::size_t size) {
    Input input{data, size};
    Session session{input};
    session.run();
    return 0;
}

/// `step()` until the input is used up, or has had enough of them.
template <class Step>
void take_steps(const Input& input, std::uint32_t most, Step&& step) {
    for (std::uint32_t i = 0; i < most && !input.empty(); ++i) step();
}

}  // namespace millrace::fuzz
