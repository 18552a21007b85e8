// What a client or a server of typed calls may write into a message: heads, errors, tables; and the
// text form of a trace.
//
// Required: what is read lies within what was given; what is taken for a head, an error or a table
// says the same when it is written again; and a plain struct can be read of anything.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/target.hpp"
#include "millrace/rpc/codec.hpp"
#include "millrace/rpc/head.hpp"
#include "millrace/rpc/table.hpp"
#include "millrace/rpc/trace.hpp"

namespace {

using namespace millrace::rpc;
using millrace::fuzz::require;

void read_head(std::span<const std::byte> input) {
    Head head;
    std::span<const std::byte> payload;
    if (!parse_head(input, head, payload)) return;
    require(payload.data() + payload.size() == input.data() + input.size() &&
                payload.size() + size_of(head) <= input.size(),
            "the payload is the end of the request");
    if (head.is_empty()) return;  // is not sent
    std::vector<std::byte> bytes(size_of(head));
    write(head, bytes.data());
    Head again;
    require(parse_head(bytes, again, payload) && payload.empty(), "a head is read again");
    require(again.sent_at == head.sent_at && again.trace == head.trace &&
                again.stream == head.stream && again.priority == head.priority &&
                again.clocks_parted == head.clocks_parted,
            "the same head");
}

void read_error(std::span<const std::byte> input) {
    const Error error = parse_error(input);
    require(error.code > Code::ok && error.code <= Code::failed, "a code that servers say");
    require(error.text.size() + error.detail.size() <= input.size(), "no more than was given");
    if (error.text.size() + error.detail.size() > longest_error) return;
    ErrorRoom room;
    const Error again = parse_error(write(error, room));
    require(again.code == error.code && again.number == error.number && again.text == error.text &&
                again.detail == error.detail,
            "the same error");
}

void read_table(std::span<const std::byte> input, bool with_counts) {
    const auto table = parse_table(input, with_counts);
    if (!table.has_value()) return;
    const auto again = parse_table(write_table(*table, with_counts), with_counts);
    require(again.has_value() && again->size() == table->size(), "a table is read again");
    for (std::size_t i = 0; i < table->size(); ++i) {
        const ProcedureReport& one = (*table)[i];
        require(!one.signature.name.empty() && one.number >= first_number &&
                    (one.number & head_bit) == 0,
                "a procedure has a name and a number of its own");
        require(why_different(one.signature, (*again)[i].signature).empty(), "the same procedure");
        require((*again)[i].calls == one.calls && (*again)[i].latency_most == one.latency_most,
                "the same counts");
    }
}

void read_traceparent(std::span<const std::byte> input) {
    const std::string_view text{reinterpret_cast<const char*>(input.data()), input.size()};
    const auto trace = parse_traceparent(text);
    if (!trace.has_value()) return;
    require(trace->is_valid(), "a trace has ids");
    const std::string again = to_traceparent(*trace);
    require(parse_traceparent(again) == trace, "the same trace");
    require(text.substr(2, 53) == std::string_view{again}.substr(2), "written as it was read");
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // A copy of its own, so that a sanitizer sees what is read behind it.
    const std::vector<std::byte> input(reinterpret_cast<const std::byte*>(data),
                                       reinterpret_cast<const std::byte*>(data) + size);
    read_head(input);
    read_error(input);
    read_table(input, false);
    read_table(input, true);
    read_traceparent(input);
    struct Plain {
        std::uint64_t words[5] = {1, 2, 3, 4, 5};
    } plain;
    require(detail::read(std::span<const std::byte>{input}, plain), "a struct can be read");
    require(size > 32 || plain.words[4] == 5, "what is missing keeps its default");
    return 0;
}
