// Two connected stream sockets, and sending and receiving all of a message: for baselines over the
// kernel's sockets.
#pragma once

#include <cstddef>
#include <utility>

#include <unistd.h>

#include "bench/framework/pair.hpp"
#include "sockets.hpp"

namespace millrace::bench {

/// A descriptor that closes itself.
class Socket {
  public:
    explicit Socket(int descriptor = -1) noexcept : descriptor_{descriptor} {}
    Socket(Socket&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    ~Socket() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    [[nodiscard]] int get() const noexcept { return descriptor_; }

  private:
    int descriptor_;
};

/// Both ends of a connection. Each side uses one and closes the other.
struct SocketEnds {
    Socket first;
    Socket second;
};

/// Blocking calls on them end after five seconds. Throws base::Error.
[[nodiscard]] SocketEnds connected(SocketKind kind);

void send_all(int descriptor, const std::byte* from, std::size_t size);
/// False: the other end closed before the first byte. Throws base::Error.
bool receive_all(Pair& pair, int descriptor, std::byte* to, std::size_t size, SocketWait wait);

}  // namespace millrace::bench
