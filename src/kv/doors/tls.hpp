// TLS at a door: what all its connections share (the certificate and its key), and one connection's
// encryption between the door and its socket. OpenSSL does it; no other file knows that. Used by
// OpenDoors and by doors.
//
// Nothing here waits: each call does what it can with what the socket has, and says what it lacks.
// Source: RFC 8446 (TLS 1.3), RFC 5246 (TLS 1.2).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "millrace/kv/doors.hpp"

struct ssl_ctx_st;
struct ssl_st;

namespace millrace::kv {

/// Any number of threads.
class TlsIdentity {
  public:
    /// Throws Error: a file cannot be read; permission: others than its owner may read the key;
    /// invalid_argument: they hold no certificate, no key, one with a passphrase, or one that is
    /// another certificate's.
    explicit TlsIdentity(const DoorTls& files);

  private:
    friend class TlsSession;
    struct Freed {
        void operator()(ssl_ctx_st* context) const noexcept;
    };
    std::unique_ptr<ssl_ctx_st, Freed> context_;
};

/// One connection's, at the server's end. Used by one thread.
class TlsSession {
  public:
    /// Of a socket that does not block, which stays its caller's. Throws std::bad_alloc.
    TlsSession(const TlsIdentity& identity, int socket);
    TlsSession(const TlsSession&) = delete;
    TlsSession& operator=(const TlsSession&) = delete;

    enum class Handshake : std::uint8_t { done, goes_on, failed };
    /// As far as it goes with what has come.
    [[nodiscard]] Handshake shake_hands() noexcept;
    [[nodiscard]] bool is_established() const noexcept { return is_established_; }

    /// What receive() may take from.
    enum class From : std::uint8_t {
        socket,
        kept,  ///< what was read from the socket before, and of which it knows nothing any more
    };
    /// As recv() and send() of a socket that does not block; what is not TLS is EPROTO. After
    /// EAGAIN, send() has to be called with what it was given, at least.
    [[nodiscard]] ssize_t receive(char* to, std::size_t room, From from) noexcept;
    [[nodiscard]] ssize_t send(std::string_view bytes) noexcept;
    /// Something may be kept: receive() has not been told yet that there is nothing.
    [[nodiscard]] bool has_kept() const noexcept { return has_kept_; }
    /// What was called last waits until the socket takes something, whatever it was called for.
    [[nodiscard]] bool wants_to_write() const noexcept { return wants_to_write_; }
    /// Tells the peer that nothing follows, if the socket takes it.
    void end() noexcept;

  private:
    struct Freed {
        void operator()(ssl_st* session) const noexcept;
    };
    /// Of a call that has returned `result`, and has failed: as recv(), with errno.
    ssize_t explain(int result) noexcept;

    struct Wire {
        int socket;
        bool reads = true;  ///< the socket is read
    };
    Wire wire_;
    std::unique_ptr<ssl_st, Freed> session_;
    bool is_established_ = false;
    bool has_kept_ = false;
    bool wants_to_write_ = false;
    bool is_broken_ = false;  ///< it cannot be ended in good order
    friend struct TlsWire;    ///< OpenSSL's calls for the socket
};

}  // namespace millrace::kv
