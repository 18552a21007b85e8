// Writes answers of the Redis protocol: RESP2, or RESP3 for clients that asked for it by HELLO 3.
// Used by the RESP door.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "doors/answers.hpp"

namespace millrace::kv {

class RespWriter : public Answers {
  public:
    /// As Answers.
    RespWriter(std::string& out, std::size_t most, int protocol) noexcept
        : Answers{out, most}, protocol_{protocol} {}

    [[nodiscard]] int protocol() const noexcept { return protocol_; }
    void use(int protocol) noexcept { protocol_ = protocol; }

    /// "OK" and the like.
    void word(std::string_view text) { line('+', text); }
    /// With its code, as in "ERR syntax error". Ends of lines become spaces, or go.
    void error(std::string_view text);
    /// What came is no request.
    void malformed(std::string_view why) { error("ERR " + std::string{why}); }
    void integer(std::int64_t number) { line_of(':', number); }
    void string(std::string_view bytes);
    void string_of(std::int64_t number);
    void null() { raw(protocol_ == 3 ? "_\r\n" : "$-1\r\n"); }
    void null_array() { raw(protocol_ == 3 ? "_\r\n" : "*-1\r\n"); }
    void array(std::size_t count) { line_of('*', static_cast<std::int64_t>(count)); }
    /// So many pairs follow.
    void map(std::size_t count) {
        if (protocol_ == 3) return line_of('%', static_cast<std::int64_t>(count));
        array(2 * count);
    }
    void set(std::size_t count) {
        line_of(protocol_ == 3 ? '~' : '*', static_cast<std::int64_t>(count));
    }
    /// For people to read.
    void text(std::string_view lines);

  private:
    void line(char kind, std::string_view text);
    void line_of(char kind, std::int64_t number);

    int protocol_;
};

}  // namespace millrace::kv
