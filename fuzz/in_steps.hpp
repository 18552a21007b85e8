// A parser of a door, which is given the bytes of a client so many more each time. Used by the
// fuzzers of doors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/target.hpp"

namespace millrace::fuzz {

/// `parse(rest)`: the parser's state after a look at what it has not taken. `take(rest, state)`: of
/// a whole request. How many bytes were taken; `error`: why it took no more.
template <class Parser, class Parse, class Take>
std::size_t parse_in_steps(Parser& parser, std::string_view bytes, std::size_t step,
                           std::string& error, Parse&& parse, Take&& take) {
    using State = typename Parser::State;
    std::size_t taken = 0;
    std::size_t come = 0;
    while (come < bytes.size()) {
        come = std::min(bytes.size(), come + step);
        for (;;) {
            // A copy of its own, so that a sanitizer sees what is read after it.
            const std::vector<char> copy(bytes.begin() + static_cast<std::ptrdiff_t>(taken),
                                         bytes.begin() + static_cast<std::ptrdiff_t>(come));
            if (copy.empty()) break;
            const std::string_view rest{copy.data(), copy.size()};
            const State state = parse(rest);
            if (state == State::failed) {
                error = parser.error();
                return taken;
            }
            if (state == State::more) {
                require(parser.wanted() > rest.size(), "who has too little wants more");
                break;
            }
            require(parser.size() != 0 && parser.size() <= rest.size(),
                    "a request lies within what came");
            take(rest, state);
            taken += parser.size();
            parser.next();
        }
    }
    return taken;
}

}  // namespace millrace::fuzz
