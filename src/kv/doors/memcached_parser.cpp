#include "doors/memcached_parser.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "doors/memcached_words.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {
namespace {

constexpr std::string_view end_of_line = "\r\n";
/// Of data, with the end of their line, memcached's own.
constexpr std::int64_t greatest_length = std::numeric_limits<std::int32_t>::max() - 2;
constexpr std::size_t longest_of_strangers = 2048;
/// More words are not kept from one request to the next.
constexpr std::size_t usual_words = 4096;

void split(std::string_view line, std::vector<std::string_view>& words) {
    if (words.capacity() > usual_words) [[unlikely]]
        words = {};
    words.clear();
    for (std::size_t at = 0; at < line.size();) {
        const std::size_t end = std::min(line.find(' ', at), line.size());
        if (end != at) words.push_back(line.substr(at, end - at));
        at = end + 1;
    }
}

constexpr std::array<std::string_view, 6> storage = {"set",    "add",     "replace",
                                                     "append", "prepend", "cas"};

std::optional<std::size_t> parse_length(std::string_view word) noexcept {
    const auto length = memcached::parse_signed(word);
    if (!length || *length < 0 || *length > greatest_length) return std::nullopt;
    return static_cast<std::size_t>(*length);
}

}  // namespace

std::size_t MemcachedParser::longest(std::string_view line) const noexcept {
    if (!is_known_) return longest_line;
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) return longest_line;
    line.remove_prefix(begin);
    for (const std::string_view name : {"get ", "gets ", "gat ", "gats "}) {
        if (line.starts_with(name)) return longest_get;
    }
    return longest_line;
}

bool MemcachedParser::wants_data(MemcachedRequest& request, std::size_t& length) const noexcept {
    const auto& words = request.words;
    const auto take_length = [&](std::size_t at) {
        const auto parsed = parse_length(words[at]);
        length = parsed.value_or(0);
        return parsed.has_value();
    };
    if (words.empty()) return false;
    if (!is_known_) return words[0] == storage[0] && words.size() >= 5 && take_length(4);
    if (words[0] == "ms") {
        return words.size() >= 3 && words.size() <= 19 &&
               words[1].size() <= memcached::longest_key_word && take_length(2);
    }
    const auto* const found = std::ranges::find(storage, words[0]);
    if (found == storage.end()) return false;
    const bool is_cas = found + 1 == storage.end();
    const std::size_t least = is_cas ? 6 : 5;
    if (words.size() < least || words.size() > least + 1 || !memcached::is_key(words[1])) {
        return false;
    }
    const auto flags = memcached::parse_flags(words[2]);
    const auto expires = memcached::parse_signed(words[3]);
    const auto cas = is_cas ? memcached::parse_unsigned(words[5]) : std::uint64_t{0};
    if (!flags || !expires || !cas) return false;
    request.flags = *flags;
    request.expires = *expires;
    request.cas = *cas;
    return take_length(4);
}

MemcachedParser::State MemcachedParser::parse(std::string_view data, MemcachedRequest& request) {
    if (skips_ != 0) {
        size_ = std::min(skips_, data.size());
        skips_ -= size_;
        return State::skipped;
    }
    if (data.size() < wanted_) return State::more;
    if (data[0] == '\x80') return fail("the binary protocol is not spoken here");
    const std::size_t end = data.find('\n', looked_at_);
    const std::size_t line_size = std::min(end, data.size());
    if (line_size > longest_line && line_size > longest(data)) return fail("line is too long");
    if (end == std::string_view::npos) {
        looked_at_ = data.size();
        wanted_ = data.size() + 1;
        return State::more;
    }
    looked_at_ = end;
    std::string_view line = data.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    split(line, request.words);
    request.kind = MemcachedRequest::Data::none;
    request.data = {};
    size_ = end + 1;
    std::size_t length = 0;
    if (!wants_data(request, length)) return State::ready;
    if (length > (is_known_ ? longest_value : longest_of_strangers)) {
        skips_ = length + end_of_line.size();
        request.kind = MemcachedRequest::Data::too_long;
        return State::ready;
    }
    const std::size_t whole = size_ + length + end_of_line.size();
    if (data.size() < whole) {
        wanted_ = whole;
        return State::more;
    }
    request.data = data.substr(size_, length);
    request.kind = data.substr(size_ + length, end_of_line.size()) == end_of_line
                       ? MemcachedRequest::Data::whole
                       : MemcachedRequest::Data::wrong_end;
    size_ = whole;
    return State::ready;
}

}  // namespace millrace::kv
