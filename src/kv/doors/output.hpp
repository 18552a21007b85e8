// Answers on their way into a socket. Used by doors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace millrace::kv {

class TlsSession;

class Output {
  public:
    /// What is written behind what has been sent of it.
    [[nodiscard]] std::string& bytes() noexcept { return bytes_; }
    [[nodiscard]] std::size_t unsent() const noexcept { return bytes_.size() - sent_; }
    [[nodiscard]] std::size_t sent() const noexcept { return sent_; }
    [[nodiscard]] std::size_t held() const noexcept { return bytes_.capacity(); }

    enum class Sent : std::uint8_t {
        all,
        some,     ///< or nothing: the peer has to read first
        nothing,  ///< any more: the connection has ended
    };
    /// As much as the socket takes, by `tls` if it is not null; never blocks. Adds to `count` what
    /// that was.
    [[nodiscard]] Sent send(int socket, TlsSession* tls, std::uint64_t& count) noexcept;
    /// Takes over what another one has not sent, which keeps its memory.
    void take_rest_of(Output& other) {
        bytes_.assign(other.bytes_, other.sent_);
        other.bytes_.clear();
        other.sent_ = 0;
    }
    /// What it has is not sent any more, and its memory goes.
    void drop() noexcept {
        std::string{}.swap(bytes_);  // assigning an empty one would keep the memory
        sent_ = 0;
    }
    /// Once all is sent: memory goes that is more than usual.
    void trim() noexcept;

  private:
    std::string bytes_;
    std::size_t sent_ = 0;
};

}  // namespace millrace::kv
