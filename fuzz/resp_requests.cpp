// What a client of the RESP door may say: requests, lines, and what is neither, cut anywhere.
//
// Required: what is found is the same however it is cut, lies within what came, and ends where the
// next one begins; and a request that was found is found again when it is written anew.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "doors/resp_parser.hpp"
#include "doors/text.hpp"
#include "fuzz/in_steps.hpp"
#include "fuzz/input.hpp"
#include "fuzz/target.hpp"

namespace {

using namespace millrace::kv;
using millrace::fuzz::require;

using Words = std::vector<std::string>;

struct Found {
    std::vector<Words> requests;
    std::string error;
    std::size_t taken = 0;
};

/// What a parser finds that is given so many bytes more each time.
Found found_in(std::string_view bytes, std::size_t step) {
    Found found;
    RespParser parser;
    found.taken = millrace::fuzz::parse_in_steps(
        parser, bytes, step, found.error, [&](std::string_view rest) { return parser.parse(rest); },
        [&](std::string_view rest, RespParser::State) {
            std::vector<std::string_view> words;
            parser.arguments(rest, words);
            found.requests.emplace_back(words.begin(), words.end());
        });
    return found;
}

void require_found_again(const Words& words) {
    std::string request = '*' + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
        request += '$' + std::to_string(word.size()) + "\r\n" + word + "\r\n";
    }
    const Found again = found_in(request, request.size());
    require(again.error.empty() && again.requests.size() == 1 && again.requests[0] == words,
            "a request that is written anew is the same");
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    millrace::fuzz::Input input{data, size};
    const std::size_t step = 1 + input.take<std::uint8_t>();
    const auto rest = input.bytes(input.size());
    const std::string_view bytes{reinterpret_cast<const char*>(rest.data()), rest.size()};
    const Found whole = found_in(bytes, bytes.size() + 1);
    const Found cut = found_in(bytes, step);
    require(whole.requests == cut.requests, "requests are the same however they are cut");
    require(whole.error == cut.error && whole.taken == cut.taken,
            "what is no request is so however it is cut");
    for (const Words& words : whole.requests) {
        if (!words.empty()) require_found_again(words);
        for (const std::string& word : words) (void)matches_glob(word, bytes.substr(0, 64));
    }
    return 0;
}
