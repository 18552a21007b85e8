#include "doors/tls.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <fmt/format.h>

#include "millrace/base/detail/private_file.hpp"
#include "millrace/base/error.hpp"

namespace millrace::kv {
namespace {

constexpr const char* opens_tls = "open a key-value store's door with TLS";

[[noreturn]] void refuse_tls(const std::string& what, std::string why, std::string remedy,
                             base::ErrorCode code = base::ErrorCode::invalid_argument) {
    throw base::Error{code, opens_tls, what, std::move(why), std::move(remedy)};
}

/// What OpenSSL says of the call that has failed; its list is empty from then on.
std::string openssl_reason() {
    const unsigned long error = ERR_peek_last_error();
    ERR_clear_error();
    const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
    return reason == nullptr ? std::string{"OpenSSL does not say why"} : std::string{reason};
}

// --- the socket, as OpenSSL's own ends the process by SIGPIPE where the peer has gone

}  // namespace

struct TlsWire {
    static TlsSession::Wire& of(BIO* bio) {
        return *static_cast<TlsSession::Wire*>(BIO_get_data(bio));
    }
    static bool is_for_later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
    static int write(BIO* bio, const char* from, std::size_t size, std::size_t* wrote) {
        BIO_clear_retry_flags(bio);
        const ssize_t sent = ::send(of(bio).socket, from, size, MSG_NOSIGNAL);
        if (sent > 0) {
            *wrote = static_cast<std::size_t>(sent);
            return 1;
        }
        if (is_for_later()) BIO_set_retry_write(bio);
        return 0;
    }
    static int read(BIO* bio, char* to, std::size_t room, std::size_t* got) {
        BIO_clear_retry_flags(bio);
        if (!of(bio).reads) {
            BIO_set_retry_read(bio);
            return 0;
        }
        const ssize_t came = ::recv(of(bio).socket, to, room, 0);
        if (came > 0) {
            *got = static_cast<std::size_t>(came);
            return 1;
        }
        if (came == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
        if (came < 0 && is_for_later()) BIO_set_retry_read(bio);
        return 0;
    }
    static long control(BIO* bio, int command, long /*number*/, void* /*what*/) {
        if (command == BIO_CTRL_FLUSH) return 1;
        if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
        return 0;
    }
    /// As long as the process; null: there was no memory.
    static const BIO_METHOD* method() {
        static BIO_METHOD* const method = [] {
            BIO_METHOD* const made =
                BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "millrace");
            if (made == nullptr) return made;
            BIO_meth_set_write_ex(made, write);
            BIO_meth_set_read_ex(made, read);
            BIO_meth_set_ctrl(made, control);
            return made;
        }();
        return method;
    }
};

namespace {

// --- the key

/// Nobody is asked for a passphrase. Notes that one is needed.
int no_passphrase(char* /*to*/, int /*room*/, int /*writes*/, void* is_needed) {
    *static_cast<bool*>(is_needed) = true;
    return -1;
}

void take_certificate(SSL_CTX* context, const std::string& path) {
    constexpr const char* remedy =
        "name a file of the certificate and those that vouch for it (PEM)";
    if (::access(path.c_str(), R_OK) != 0) base::throw_errno(errno, opens_tls, path, remedy);
    if (SSL_CTX_use_certificate_chain_file(context, path.c_str()) != 1) {
        refuse_tls(path, fmt::format("it holds no certificate: {}", openssl_reason()), remedy);
    }
}

void take_key(SSL_CTX* context, const DoorTls& files) {
    constexpr const char* remedy = "name a file that holds the certificate's key (PEM)";
    constexpr std::size_t most = std::size_t{1} << 20;
    const base::PrivateFile text{files.key_file, most + 1, opens_tls, "key", remedy};
    if (text.bytes().size() > most) refuse_tls(files.key_file, "it is too long", remedy);
    struct FreedBio {
        void operator()(BIO* bio) const noexcept { BIO_free(bio); }
    };
    struct FreedKey {
        void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
    };
    const std::unique_ptr<BIO, FreedBio> bio{
        BIO_new_mem_buf(text.bytes().data(), static_cast<int>(text.bytes().size()))};
    if (bio == nullptr) throw std::bad_alloc{};
    bool is_locked = false;
    const std::unique_ptr<EVP_PKEY, FreedKey> key{
        PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, &is_locked)};
    if (key == nullptr) {
        const std::string reason = openssl_reason();
        if (is_locked) {
            refuse_tls(files.key_file, "it wants a passphrase, which nobody is there to give",
                       "name a key without one: openssl pkey -in KEY -out OTHER");
        }
        refuse_tls(files.key_file, fmt::format("it holds no key: {}", reason), remedy);
    }
    if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
        SSL_CTX_check_private_key(context) != 1) {
        refuse_tls(
            files.key_file,
            fmt::format("it is not the key of {}: {}", files.certificate_file, openssl_reason()),
            "name the key that the certificate was made with");
    }
}

}  // namespace

// --- TlsIdentity

void TlsIdentity::Freed::operator()(ssl_ctx_st* context) const noexcept { SSL_CTX_free(context); }

TlsIdentity::TlsIdentity(const DoorTls& files) {
    // What OpenSSL has would go when main() returns, with threads that still use it.
    OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
    ERR_clear_error();
    context_.reset(SSL_CTX_new(TLS_server_method()));
    if (context_ == nullptr || TlsWire::method() == nullptr) {
        refuse_tls("of any certificate", openssl_reason(), "look at OpenSSL's configuration",
                   base::ErrorCode::system);
    }
    SSL_CTX* const context = context_.get();
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(
        context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    // A part of an answer may go, and what is left of it may have moved; an idle connection has no
    // buffers; one system call for each piece that comes, not two for each record.
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(context, 1);
    // Tickets let clients resume; what they need lies with the clients.
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    take_certificate(context, files.certificate_file);
    take_key(context, files);
}

// --- TlsSession

void TlsSession::Freed::operator()(ssl_st* session) const noexcept { SSL_free(session); }

TlsSession::TlsSession(const TlsIdentity& identity, int socket)
    : wire_{socket}, session_{SSL_new(identity.context_.get())} {
    BIO* const bio = session_ == nullptr ? nullptr : BIO_new(TlsWire::method());
    if (bio == nullptr) throw std::bad_alloc{};
    BIO_set_data(bio, &wire_);
    BIO_set_init(bio, 1);
    SSL_set_bio(session_.get(), bio, bio);
    SSL_set_accept_state(session_.get());
}

TlsSession::Handshake TlsSession::shake_hands() noexcept {
    ERR_clear_error();
    const int result = SSL_do_handshake(session_.get());
    if (result == 1) {
        is_established_ = true;
        has_kept_ = true;  // perhaps, of what has come with its end
        wants_to_write_ = false;
        return Handshake::done;
    }
    (void)explain(result);
    return errno == EAGAIN ? Handshake::goes_on : Handshake::failed;
}

ssize_t TlsSession::explain(int result) noexcept {
    const int why = SSL_get_error(session_.get(), result);
    wants_to_write_ = why == SSL_ERROR_WANT_WRITE;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        errno = EAGAIN;
        return -1;
    }
    if (why == SSL_ERROR_ZERO_RETURN) return 0;
    is_broken_ = true;
    ERR_clear_error();
    errno = EPROTO;
    return -1;
}

ssize_t TlsSession::receive(char* to, std::size_t room, From from) noexcept {
    wire_.reads = from == From::socket;
    // A record has 16 KiB at most, and more than one may have come.
    std::size_t all = 0;
    ssize_t ended = 0;
    has_kept_ = true;
    while (all < room) {
        ERR_clear_error();
        std::size_t got = 0;
        const int result = SSL_read_ex(session_.get(), to + all, room - all, &got);
        if (result != 1) {
            ended = explain(result);
            // What has come is told before its end.
            has_kept_ = all != 0 && !(ended < 0 && errno == EAGAIN);
            break;
        }
        all += got;
    }
    wire_.reads = true;
    return all != 0 ? static_cast<ssize_t>(all) : ended;
}

ssize_t TlsSession::send(std::string_view bytes) noexcept {
    ERR_clear_error();
    std::size_t wrote = 0;
    const int result = SSL_write_ex(session_.get(), bytes.data(), bytes.size(), &wrote);
    if (result == 1) return static_cast<ssize_t>(wrote);
    (void)explain(result);
    // It would have to read first only where a session may be agreed on anew: it may not.
    if (errno == EAGAIN && !wants_to_write_) errno = EPROTO;
    return -1;
}

void TlsSession::end() noexcept {
    if (!is_established_ || is_broken_) return;
    ERR_clear_error();
    (void)SSL_shutdown(session_.get());
    ERR_clear_error();
}

}  // namespace millrace::kv
