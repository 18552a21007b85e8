// Two connected sockets in one process, and bytes that tell where in a stream they are.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "millrace/stream/socket.hpp"

namespace millrace::stream {

using Bytes = std::vector<std::byte>;

/// Generous: it only ends what has failed.
inline base::Deadline patience() { return base::Deadline::after(std::chrono::seconds{40}); }

inline connect::Address unused_address() {
    static std::atomic<int> number = 0;
    return connect::Address::parse("unix:@millrace-stream-test-" + std::to_string(getpid()) + "-" +
                                   std::to_string(++number));
}

struct Pair {
    explicit Pair(const SocketOptions& options = {}) : Pair(options, options) {}
    Pair(const SocketOptions& left, const SocketOptions& right) {
        const connect::Address address = unused_address();
        Listener listener = Listener::listen(address, left);
        std::thread other{[&] { far.emplace(connect(address, right, patience())); }};
        near.emplace(listener.accept(patience()));
        other.join();
    }
    std::optional<Socket> near, far;
};

[[nodiscard]] inline SocketOptions in_mode(Mode mode, std::size_t ring_bytes = 64 << 10) {
    SocketOptions options;
    options.mode = mode;
    options.ring_bytes = ring_bytes;
    return options;
}

/// Waits for the next completion of `socket`, which must be of operation `id`.
inline Completion next(Socket& socket, std::uint64_t id) {
    Completion completion;
    EXPECT_EQ(socket.wait(completion, patience()), base::Status::ok) << socket.failure();
    EXPECT_EQ(completion.id, id);
    return completion;
}

/// The byte at `place` of stream `seed`: neighbours differ, and so do the same places of pages.
[[nodiscard]] inline std::byte byte_at(std::uint64_t place, std::uint64_t seed) noexcept {
    return static_cast<std::byte>(((place + seed) * 0x9e3779b97f4a7c15ULL) >> 56);
}
inline void fill(std::span<std::byte> bytes, std::uint64_t place, std::uint64_t seed) noexcept {
    for (std::byte& byte : bytes) byte = byte_at(place++, seed);
}
[[nodiscard]] inline bool is_right(std::span<const std::byte> bytes, std::uint64_t place,
                                   std::uint64_t seed) noexcept {
    for (const std::byte byte : bytes) {
        if (byte != byte_at(place++, seed)) return false;
    }
    return true;
}
[[nodiscard]] inline Bytes pattern(std::size_t size, std::uint64_t seed) {
    Bytes bytes(size);
    fill(bytes, 0, seed);
    return bytes;
}

}  // namespace millrace::stream
