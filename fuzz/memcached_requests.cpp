// What a client of the memcached door may say: lines, data, and what is neither, cut anywhere; and
// what the door does with it.
//
// Required: what is found is the same however it is cut, lies within what came, and ends where the
// next one begins; every answer ends with a line's end, and no item is longer than it may be.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "doors/memcached_commands.hpp"
#include "doors/memcached_parser.hpp"
#include "fuzz/in_steps.hpp"
#include "fuzz/input.hpp"
#include "fuzz/target.hpp"
#include "gate.hpp"

namespace {

using namespace millrace::kv;
using millrace::fuzz::require;

struct Request {
    std::vector<std::string> words;
    std::string data;
    MemcachedRequest::Data kind;
    bool operator==(const Request&) const = default;
};
struct Found {
    std::vector<Request> requests;
    std::string error;
    std::size_t taken = 0;
};

/// What a door does with requests.
class Carried {
  public:
    Carried() {
        service_.note_expiring = [] {};
        service_.stats = [] { return DoorStats{}; };
        session_.is_known = true;
    }
    void out(const MemcachedRequest& request) {
        std::string answer;
        MemcachedWriter writer{answer, most};
        serve_memcached(service_, 0, session_, writer, request, scratch_);
        require(writer.is_full() || answer.empty() || answer.ends_with("\r\n"),
                "an answer ends with the end of a line");
        require(answer.size() <= most, "an answer is as long as it may be at most");
        session_.is_leaving = false;
    }

  private:
    static constexpr std::size_t most = std::size_t{1} << 16;
    Store store_{{.memory_bytes = least_memory, .when_full = WhenFull::evict}};
    Gate gate_{1};
    DoorCrowd crowd_;
    MemcachedService service_{store_, gate_, crowd_, DoorOptions{}};
    DoorSession session_;
    std::string scratch_;
};

/// What a parser finds that is given so many bytes more each time.
Found found_in(std::string_view bytes, std::size_t step, bool is_known, Carried* carried) {
    Found found;
    MemcachedParser parser;
    parser.trust(is_known);
    MemcachedRequest request;
    found.taken = millrace::fuzz::parse_in_steps(
        parser, bytes, step, found.error,
        [&](std::string_view rest) { return parser.parse(rest, request); },
        [&](std::string_view, MemcachedParser::State state) {
            if (state != MemcachedParser::State::ready) return;
            found.requests.push_back({{request.words.begin(), request.words.end()},
                                      std::string{request.data},
                                      request.kind});
            if (carried != nullptr) carried->out(request);
        });
    return found;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static Carried carried;
    millrace::fuzz::Input input{data, size};
    const auto how = input.take<std::uint8_t>();
    const std::size_t step = 1 + how / 2;
    const bool is_known = how % 2 == 0;
    const auto rest = input.bytes(input.size());
    const std::string_view bytes{reinterpret_cast<const char*>(rest.data()), rest.size()};
    const Found whole = found_in(bytes, bytes.size() + 1, is_known, is_known ? &carried : nullptr);
    const Found cut = found_in(bytes, step, is_known, nullptr);
    require(whole.requests == cut.requests, "requests are the same however they are cut");
    require(whole.error == cut.error && whole.taken == cut.taken,
            "what is no request is so however it is cut");
    return 0;
}
