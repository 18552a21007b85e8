// Reads requests of memcached's text protocol, a piece at a time:
//
//   get name\r\n                          a line of words
//   set name 0 0 5\r\nvalue\r\n           or one that data follow, as many as it says
//
// As RespParser it has no memory for what comes: whoever calls it gives it all bytes of the request
// so far, and it goes on after those that it has seen. Data that are too long for a value are not
// waited for: the request is told without them, and what comes of them is skipped. Used by the
// memcached door. Source: memcached's doc/protocol.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::kv {

/// Places in what was given to the parser.
struct MemcachedRequest {
    enum class Data : std::uint8_t {
        none,       ///< none follow, or the line is wrong and says so
        whole,      ///< in `data`, without the end of their line
        wrong_end,  ///< they end otherwise than with the end of a line
        too_long,   ///< and skipped
    };
    std::vector<std::string_view> words;
    Data kind = Data::none;
    std::string_view data;
    // What the line of set, add, replace, append, prepend and cas says, where data follow.
    std::uint32_t flags = 0;
    std::int64_t expires = 0;  ///< memcached::time_of()
    std::uint64_t cas = 0;
};

class MemcachedParser {
  public:
    enum class State : std::uint8_t {
        more,     ///< there is no whole request yet
        ready,    ///< `request`, size(); then next()
        skipped,  ///< size() bytes that belong to no request; then next()
        failed,   ///< error(): nothing that follows can be understood
    };
    /// What a client that has not said its password may send is short, and nothing but a password.
    void trust(bool is_known) noexcept { is_known_ = is_known; }

    /// `data`: what has come of this request and those after it, not empty.
    [[nodiscard]] State parse(std::string_view data, MemcachedRequest& request);

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// more: so many bytes of the request it needs at least.
    [[nodiscard]] std::size_t wanted() const noexcept { return wanted_; }
    [[nodiscard]] std::string_view error() const noexcept { return error_; }
    /// The request is done with: what is given next begins with another one.
    void next() noexcept {
        looked_at_ = 0;
        wanted_ = 1;
    }

    static constexpr std::size_t longest_line = 2048;
    /// Of get, gets, gat and gats, which may name many keys.
    static constexpr std::size_t longest_get = std::size_t{1} << 20;

  private:
    State fail(std::string_view why) noexcept {
        error_ = why;
        return State::failed;
    }
    /// How many bytes follow a line; none: no data do.
    [[nodiscard]] bool wants_data(MemcachedRequest& request, std::size_t& length) const noexcept;
    [[nodiscard]] std::size_t longest(std::string_view line) const noexcept;

    bool is_known_ = true;
    std::size_t size_ = 0;
    std::size_t looked_at_ = 0;  ///< no end of the line is before this
    std::size_t wanted_ = 1;
    std::size_t skips_ = 0;  ///< bytes of data that are too long
    std::string_view error_;
};

}  // namespace millrace::kv
