#include "doors/output.hpp"

#include <sys/socket.h>

#include <cerrno>

#include "doors/tls.hpp"

namespace millrace::kv {

Output::Sent Output::send(int socket, TlsSession* tls, std::uint64_t& count) noexcept {
    while (unsent() != 0) {
        const char* const from = bytes_.data() + sent_;
        const ssize_t took = tls == nullptr ? ::send(socket, from, unsent(), MSG_NOSIGNAL)
                                            : tls->send({from, unsent()});
        if (took < 0) {
            if (errno == EINTR) continue;
            return errno == EAGAIN || errno == EWOULDBLOCK ? Sent::some : Sent::nothing;
        }
        sent_ += static_cast<std::size_t>(took);
        count += static_cast<std::uint64_t>(took);
        // Not after each piece, as what is behind it moves to the front.
        if (sent_ >= bytes_.size() / 2) {
            bytes_.erase(0, sent_);
            sent_ = 0;
        }
    }
    return Sent::all;
}

void Output::trim() noexcept {
    constexpr std::size_t usual = std::size_t{256} << 10;
    if (unsent() == 0 && bytes_.capacity() > usual) drop();
}

}  // namespace millrace::kv
