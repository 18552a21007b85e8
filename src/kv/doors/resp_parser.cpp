#include "doors/resp_parser.hpp"

#include <algorithm>
#include <limits>

#include "doors/text.hpp"

namespace millrace::kv {
namespace {

constexpr std::int64_t most_arguments = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t most_of_strangers = 10;
constexpr std::int64_t longest_of_strangers = 16384;
/// More places are not kept from one request to the next.
constexpr std::size_t usual_arguments = 1024;

}  // namespace

RespParser::State RespParser::fail(std::string why) {
    error_ = "Protocol error: " + std::move(why);
    return State::failed;
}

void RespParser::next() noexcept {
    wants_ = Wants::kind;
    is_line_ = false;
    at_ = 0;
    looked_at_ = 0;
    wanted_ = 1;
    if (places_.capacity() > usual_arguments) [[unlikely]]
        places_ = decltype(places_){};
    places_.clear();
    if (letters_.capacity() > longest_line / 16) [[unlikely]]
        std::string{}.swap(letters_);
}

std::size_t RespParser::held() const noexcept {
    return places_.capacity() * sizeof places_[0] + letters_.capacity();
}

void RespParser::arguments(std::string_view data, std::vector<std::string_view>& to) const {
    const std::string_view in = is_line_ ? std::string_view{letters_} : data;
    to.clear();
    to.reserve(places_.size());
    for (const auto& [offset, length] : places_) to.push_back(in.substr(offset, length));
}

RespParser::State RespParser::parse(std::string_view data) {
    if (data.size() < wanted_) return State::more;
    switch (wants_) {
        case Wants::kind:
            if (data[0] != '*') {
                is_line_ = true;
                return parse_line(data);
            }
            wants_ = Wants::count;
            at_ = 1;
            [[fallthrough]];
        case Wants::count: return parse_count(data);
        case Wants::argument_size:
        case Wants::argument: return parse_arguments(data);
    }
    return State::more;
}

RespParser::State RespParser::parse_line(std::string_view data) {
    const std::size_t end = data.find('\n', looked_at_);
    if (end == std::string_view::npos) {
        if (data.size() > longest_line) return fail("too big inline request");
        looked_at_ = data.size();
        wanted_ = data.size() + 1;
        return State::more;
    }
    std::string_view line = data.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!split_words(line, letters_, places_)) return fail("unbalanced quotes in request");
    at_ = end + 1;
    return State::ready;
}

std::string_view RespParser::take_number(std::string_view data) noexcept {
    looked_at_ = std::max(looked_at_, at_);
    const std::size_t end = data.find('\r', looked_at_);
    // The byte behind it is taken for the end of the line, whatever it is, as Redis does.
    if (end == std::string_view::npos || end + 1 == data.size()) {
        looked_at_ = end == std::string_view::npos ? data.size() : end;
        wanted_ = data.size() + 1;
        return {};
    }
    const std::string_view line = data.substr(at_, end - at_);
    at_ = end + 2;
    return line.empty() ? std::string_view{data.data(), 0} : line;
}

RespParser::State RespParser::parse_count(std::string_view data) {
    const std::string_view text = take_number(data);
    if (text.data() == nullptr) {
        if (data.size() - 1 > longest_line) return fail("too big mbulk count string");
        return State::more;
    }
    const auto count = parse_integer(text);
    if (!count || *count > most_arguments) return fail("invalid multibulk length");
    if (!is_known_ && *count > most_of_strangers) return fail("unauthenticated multibulk length");
    if (*count <= 0) return State::ready;
    left_ = *count;
    wants_ = Wants::argument_size;
    return parse_arguments(data);
}

RespParser::State RespParser::parse_arguments(std::string_view data) {
    for (;;) {
        if (wants_ == Wants::argument_size) {
            if (at_ == data.size()) {
                wanted_ = at_ + 1;
                return State::more;
            }
            // Its first byte is looked at once the line is whole, as Redis does.
            const std::size_t begin = at_;
            const std::string_view text = take_number(data);
            if (text.data() == nullptr) {
                if (data.size() - begin > longest_line) return fail("too big bulk count string");
                return State::more;
            }
            if (data[begin] != '$') {
                return fail(std::string{"expected '$', got '"} + data[begin] + '\'');
            }
            const auto length = parse_integer(text.substr(text.empty() ? 0 : 1));
            if (!length || *length < 0 || *length > longest_argument) {
                return fail("invalid bulk length");
            }
            if (!is_known_ && *length > longest_of_strangers) {
                return fail("unauthenticated bulk length");
            }
            length_ = *length;
            wants_ = Wants::argument;
        }
        const std::size_t end = at_ + static_cast<std::size_t>(length_) + 2;
        if (data.size() < end) {
            wanted_ = end;
            return State::more;
        }
        places_.emplace_back(static_cast<std::uint32_t>(at_), static_cast<std::uint32_t>(length_));
        at_ = end;
        wants_ = Wants::argument_size;
        if (--left_ == 0) return State::ready;
    }
}

}  // namespace millrace::kv
