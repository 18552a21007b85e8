// Writes answers of memcached's text protocol. Used by the memcached door.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "doors/answers.hpp"

namespace millrace::kv {

class MemcachedWriter : public Answers {
  public:
    using Answers::Answers;

    /// "STORED" and the like.
    void line(std::string_view text) {
        if (!has_room(text.size() + 2)) [[unlikely]]
            return;
        out_->append(text);
        out_->append("\r\n");
    }
    /// An error; `is_told`: not to who does not want answers.
    void error(std::string_view text, bool is_told = true) {
        ++errors_;
        if (is_told) line(text);
    }
    /// What came is no request.
    void malformed(std::string_view why) {
        raw("CLIENT_ERROR ");
        error(why);
    }
    /// A piece of a line.
    void number(std::uint64_t number) {
        char digits[longest_number];
        const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
        raw({digits, static_cast<std::size_t>(end - digits)});
    }
    /// A line that begins with "VALUE", and the bytes that belong to it.
    void value(std::string_view key, std::uint32_t flags, std::string_view bytes,
               std::optional<std::uint64_t> cas) {
        raw("VALUE ");
        raw(key);
        raw(" ");
        number(flags);
        raw(" ");
        number(bytes.size());
        if (cas) {
            raw(" ");
            number(*cas);
        }
        raw("\r\n");
        line(bytes);
    }

  private:
    static constexpr std::size_t longest_number = 20;  // of 64 bits
};

}  // namespace millrace::kv
