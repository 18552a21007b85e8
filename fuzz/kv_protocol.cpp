// What a client of the key-value store, or a server of it, may write into a message: requests,
// answers, dumps and which page of one, several keys and what becomes of each.
//
// Required: what is read lies within what was given, a request is the bytes that its parts are
// written as, and reading a dump ends.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fuzz/target.hpp"
#include "millrace/kv/protocol.hpp"

namespace {

using namespace millrace::kv;

using millrace::fuzz::require;

void require_within(std::span<const std::byte> part, std::span<const std::byte> whole) {
    require(part.empty() || (part.data() >= whole.data() &&
                             part.data() + part.size() <= whole.data() + whole.size()),
            "what is read lies within what was given");
}

void require_same_page(std::span<const std::byte> value) {
    if (const std::optional<DumpRequest> request = parse_dump_request(value)) {
        require(std::ranges::equal(pack(*request), value), "a page is asked for as it was read");
    }
}

/// The request's value, and what is answered to it.
void require_several_keys_read(std::span<const std::byte> input) {
    if (const std::optional<MgetRequest> asked = parse_mget_request(input)) {
        std::span<const std::byte> keys = asked->keys;
        std::size_t count = 0;
        while (const std::optional<std::span<const std::byte>> key = next_of_keys(keys)) {
            require_within(*key, input);
            ++count;
        }
        require(keys.empty() && count == asked->count && count <= most_keys,
                "there are as many keys as were counted");
        require(count * mget_item_head_bytes <= asked->bytes,
                "the answer has room for what it says of each");
    }
    std::span<const std::byte> items = input;
    for (std::span<const std::byte> left = items;
         const std::optional<MgetItem> item = next_of_mget(items); left = items) {
        require_within(item->value, input);
        require(item->is_left_out || item->value.size() == item->bytes,
                "a value is as long as its item says");
        require(items.size() + size_of(*item) == left.size(), "an item is as long as it says");
        std::vector<std::byte> again(size_of(*item));
        write(*item, again.data());
        require(std::ranges::equal(again, left.first(again.size())),
                "an item is what it is written as");
    }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) { return 0; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // A copy of its own, so that a sanitizer sees what is read behind it.
    const std::vector<std::byte> input(reinterpret_cast<const std::byte*>(data),
                                       reinterpret_cast<const std::byte*>(data) + size);
    if (const std::optional<RequestParts> parts = parse_request(input)) {
        require_within(parts->key, input);
        require_within(parts->value, input);
        require_same_page(parts->value);
        require_several_keys_read(parts->value);
        const bool forever = (std::to_integer<unsigned>(input[0]) & request_expires) != 0 &&
                             !parts->options.expires_after;
        if (!forever) {  // what expires after centuries is written without that
            require(size_of(*parts) == input.size(), "a request is as long as its parts");
            std::vector<std::byte> again(input.size());
            write(*parts, again);
            require(again == input, "a request is what its parts are written as");
        }
    }
    require_same_page(input);
    require_several_keys_read(input);
    std::span<const std::byte> rest;
    if (parse_answer(input, rest)) require_within(rest, input);
    if (const std::optional<DumpPage> page = parse_dump_page(input)) {
        require_within(page->items, input);
    }
    std::span<const std::byte> dump = input;
    for (std::size_t left = dump.size(); const std::optional<Entry> entry = next_of_dump(dump);
         left = dump.size()) {
        require_within(entry->key, input);
        require_within(entry->value, input);
        require(dump.size() < left, "reading a dump ends");
    }
    return 0;
}
