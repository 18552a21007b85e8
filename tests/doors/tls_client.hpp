// What the tests of TLS at the doors share: a certificate of its own, and a client of which every
// byte on the wire is the test's to send.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include <openssl/ssl.h>

#include "doors/door_client.hpp"

namespace millrace::kv {

/// A certificate that vouches for itself, and its key.
class Certificate {
  public:
    [[nodiscard]] static bool can_be_made() { return is_installed("openssl"); }

    Certificate() {
        const Said said = run({"/usr/bin/openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                               "ec_paramgen_curve:P-256", "-nodes", "-keyout", key(), "-out",
                               certificate(), "-days", "30", "-subj", "/CN=localhost", "-addext",
                               "subjectAltName=IP:127.0.0.1,DNS:localhost"});
        if (!said.exit.success()) throw std::runtime_error{"no certificate: " + said.text};
        ::chmod(key().c_str(), 0600);
    }
    [[nodiscard]] std::string certificate() const { return folder_.path("certificate.pem"); }
    [[nodiscard]] std::string key() const { return folder_.path("key.pem"); }
    [[nodiscard]] DoorTls files() const { return {certificate(), key()}; }

  private:
    test::TemporaryFolder folder_;
};

class TlsClient : public DoorClient {
  public:
    /// `chunk`: bytes of TLS that are sent at a time. `newest`: the version of TLS.
    explicit TlsClient(const std::string& path, std::size_t chunk = 65536,
                       int newest = TLS1_3_VERSION)
        : DoorClient{path}, chunk_{chunk}, context_{SSL_CTX_new(TLS_client_method())} {
        SSL_CTX_set_max_proto_version(context_.get(), newest);
        if (newest < TLS1_2_VERSION) SSL_CTX_set_security_level(context_.get(), 0);
        session_.reset(SSL_new(context_.get()));
        SSL_set_bio(session_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
        SSL_set_connect_state(session_.get());
    }

    /// The bytes with which the handshake begins.
    std::string hello() {
        (void)SSL_do_handshake(session_.get());
        return taken_from_tls();
    }
    /// False: the server did not want it.
    bool shake_hands() {
        while (SSL_do_handshake(session_.get()) != 1) {
            if (!flush() || !fill()) return false;
        }
        return flush();
    }
    bool send_by_tls(std::string_view bytes) {
        if (SSL_write(session_.get(), bytes.data(), static_cast<int>(bytes.size())) <= 0) {
            return false;
        }
        return flush();
    }
    /// So many bytes that the server sent, or fewer, if it has ended the connection.
    std::string receive_by_tls(std::size_t size) {
        std::string all;
        while (all.size() < size) {
            char bytes[65536];
            const int most = static_cast<int>(std::min(sizeof bytes, size - all.size()));
            const int got = SSL_read(session_.get(), bytes, most);
            if (got > 0) {
                all.append(bytes, static_cast<std::size_t>(got));
            } else if (!flush() || !fill()) {
                return all;
            }
        }
        return all;
    }
    /// These, and in one piece with them that no more will come.
    bool send_last_by_tls(std::string_view bytes) {
        if (SSL_write(session_.get(), bytes.data(), static_cast<int>(bytes.size())) <= 0) {
            return false;
        }
        (void)SSL_shutdown(session_.get());
        return flush();
    }
    /// The server has said that no more will come: nobody has cut the connection.
    [[nodiscard]] bool has_ended_in_order() const {
        return (SSL_get_shutdown(session_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
    }
    /// New keys, for both directions.
    bool change_keys() {
        return SSL_key_update(session_.get(), SSL_KEY_UPDATE_REQUESTED) == 1 &&
               SSL_do_handshake(session_.get()) == 1 && flush();
    }

  private:
    std::string taken_from_tls() {
        std::string out(BIO_ctrl_pending(SSL_get_wbio(session_.get())), '\0');
        if (!out.empty()) {
            BIO_read(SSL_get_wbio(session_.get()), out.data(), static_cast<int>(out.size()));
        }
        return out;
    }
    bool flush() {
        const std::string out = taken_from_tls();
        for (std::size_t at = 0; at < out.size(); at += chunk_) {
            if (!send(std::string_view{out}.substr(at, chunk_))) return false;
        }
        return true;
    }
    bool fill() {
        if (come().empty() && !receive()) return false;
        const std::string bytes = take(come().size());
        return BIO_write(SSL_get_rbio(session_.get()), bytes.data(),
                         static_cast<int>(bytes.size())) > 0;
    }

    struct Freed {
        void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
        void operator()(SSL* session) const { SSL_free(session); }
    };
    std::size_t chunk_;
    std::unique_ptr<SSL_CTX, Freed> context_;
    std::unique_ptr<SSL, Freed> session_;
};

}  // namespace millrace::kv
