// Reads requests of the Redis protocol (RESP2 and RESP3 have the same ones), a piece at a time:
//
//   *2\r\n $3\r\nGET\r\n $4\r\nname\r\n        an array of strings
//   GET name\r\n                             or a line: what begins otherwise than with a star
//
// It has no memory of its own for what comes: whoever calls it gives it all bytes of the request so
// far, from the first one on, wherever they are by now; it goes on behind those that it has seen.
// What it finds are places in these bytes, so nothing is copied. Errors are Redis' own, word by
// word. Used by the RESP door. Source: the protocol's specification (redis.io, "RESP protocol").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::kv {

class RespParser {
  public:
    enum class State : std::uint8_t {
        more,    ///< there is no whole request yet
        ready,   ///< arguments(), size(); then next()
        failed,  ///< error(): nothing that follows can be understood
    };
    /// What a client that has not said its password may send is short.
    void trust(bool is_known) noexcept { is_known_ = is_known; }

    /// `data`: what has come of this request and those after it.
    [[nodiscard]] State parse(std::string_view data);

    /// ready: none, for a request that asks for nothing. In `data`, or, of a line, here.
    void arguments(std::string_view data, std::vector<std::string_view>& to) const;
    /// ready: bytes of the request.
    [[nodiscard]] std::size_t size() const noexcept { return at_; }
    /// more: so many bytes of the request it needs at least.
    [[nodiscard]] std::size_t wanted() const noexcept { return wanted_; }
    [[nodiscard]] const std::string& error() const noexcept { return error_; }
    /// Bytes of memory that it holds.
    [[nodiscard]] std::size_t held() const noexcept;
    /// The request is done with: what is given next begins with another one.
    void next() noexcept;

    /// Of one argument: no item has a longer value.
    static constexpr std::int64_t longest_argument = std::int64_t{1} << 20;
    static constexpr std::size_t longest_line = std::size_t{64} << 10;

  private:
    enum class Wants : std::uint8_t { kind, count, argument_size, argument };

    State fail(std::string why);
    State parse_line(std::string_view data);
    /// The line from at_ on, without its end; a null one: it has not come.
    [[nodiscard]] std::string_view take_number(std::string_view data) noexcept;
    State parse_count(std::string_view data);
    State parse_arguments(std::string_view data);

    Wants wants_ = Wants::kind;
    bool is_line_ = false;
    bool is_known_ = true;
    std::size_t at_ = 0;         ///< behind what was understood
    std::size_t looked_at_ = 0;  ///< no end of line is before this
    std::size_t wanted_ = 1;
    std::int64_t left_ = 0;                                        ///< arguments
    std::int64_t length_ = 0;                                      ///< of the argument at at_
    std::vector<std::pair<std::uint32_t, std::uint32_t>> places_;  ///< offset and length of each
    std::string letters_;                                          ///< of a line's words
    std::string error_;
};

}  // namespace millrace::kv
