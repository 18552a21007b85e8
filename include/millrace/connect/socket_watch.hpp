// Waiting for sockets that a floor above reads and writes itself (Link::take_over_socket): for one
// (SocketNews, wait_for_socket), and for many at once (SocketWatch).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millrace/base/cancellation.hpp"
#include "millrace/base/error.hpp"

namespace millrace::connect {

/// Sleeps until the socket may be read, or has ended, or, with `for_room`, may be written; for
/// `limit` at most. Interrupted, or `cancellation` (which may be null) is requested: earlier.
void wait_for_socket(int socket, bool for_room, std::chrono::nanoseconds limit,
                     const base::Cancellation* cancellation) noexcept;

/// A descriptor that is readable as long as the socket may be read, or has ended; or, while
/// want_room(true) holds, may be written. One thread at a time.
class SocketNews {
  public:
    /// Throws Error (resource_exhausted): no more descriptors.
    explicit SocketNews(int socket);
    SocketNews(const SocketNews&) = delete;
    SocketNews& operator=(const SocketNews&) = delete;
    ~SocketNews();
    [[nodiscard]] int descriptor() const noexcept;
    void want_room(bool wanted) noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Tells of any number of sockets which ones have got something to read, or room to write, or have
/// ended: once for each time that this has changed, so whoever is told goes on until the socket
/// gives no more. Costs nothing for those to which nothing happens. One thread at a time.
class SocketWatch {
  public:
    struct Told {
        void* whose = nullptr;
        bool may_read = false;
        bool may_write = false;
        bool ends = false;  ///< read until the end is found
    };

    /// Throws Error (resource_exhausted): no more descriptors.
    SocketWatch();
    SocketWatch(const SocketWatch&) = delete;
    SocketWatch& operator=(const SocketWatch&) = delete;
    ~SocketWatch();

    /// What it has already is told, too. Throws Error (resource_exhausted).
    void add(int socket, void* whose);
    /// Before it is closed. What it was told of is not told any more.
    void remove(int socket) noexcept;
    /// How many look() tells of.
    static constexpr std::size_t most = 64;
    /// What has happened since the last time; `most` of them: there may be more. Valid until the
    /// next call. One system call.
    [[nodiscard]] std::span<const Told> look() noexcept;
    /// Readable when look() has something to tell.
    [[nodiscard]] int descriptor() const noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace millrace::connect
