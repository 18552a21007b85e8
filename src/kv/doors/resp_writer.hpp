// Writes answers of the Redis protocol: RESP2, or RESP3 for clients that asked for it by HELLO 3.
// Used by the RESP door.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::kv {

class RespWriter {
  public:
    /// Appends to `out`, up to `most` bytes in all: what is beyond is left out, and is_full() says
    /// so for good.
    RespWriter(std::string& out, std::size_t most, int protocol) noexcept
        : out_{&out}, most_{most}, protocol_{protocol} {}

    void limit(std::size_t most) noexcept { most_ = most; }
    [[nodiscard]] bool is_full() const noexcept { return is_full_; }
    /// What there is to say does not fit.
    void give_up() noexcept { is_full_ = true; }
    /// That have been written since it was made.
    [[nodiscard]] std::uint64_t errors() const noexcept { return errors_; }
    [[nodiscard]] int protocol() const noexcept { return protocol_; }
    void use(int protocol) noexcept { protocol_ = protocol; }

    /// "OK" and the like.
    void word(std::string_view text) { line('+', text); }
    /// With its code, as in "ERR syntax error". Ends of lines become spaces, or go.
    void error(std::string_view text);
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
    /// What was written by another writer.
    void raw(std::string_view bytes) {
        if (!has_room(bytes.size())) [[unlikely]]
            return;
        out_->append(bytes);
    }

  private:
    [[nodiscard]] bool has_room(std::size_t more) noexcept {
        if (out_->size() + more <= most_) [[likely]]
            return true;
        is_full_ = true;
        return false;
    }
    void line(char kind, std::string_view text);
    void line_of(char kind, std::int64_t number);

    std::string* out_;
    std::size_t most_;
    int protocol_;
    bool is_full_ = false;
    std::uint64_t errors_ = 0;
};

}  // namespace millrace::kv
