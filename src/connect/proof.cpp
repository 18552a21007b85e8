// Proofs of the secret, see the header.
#include "proof.hpp"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "millrace/base/error.hpp"

namespace millrace::connect {
namespace {

const std::uint8_t* raw(std::span<const std::byte> bytes) noexcept {
    return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

void add(hmac_sha256_ctx& context, std::span<const std::byte> part) noexcept {
    std::array<std::uint8_t, 8> size;
    for (std::size_t i = 0; i < size.size(); ++i) {
        size[i] = static_cast<std::uint8_t>(part.size() >> (8 * i));
    }
    hmac_sha256_update(&context, size.size(), size.data());
    hmac_sha256_update(&context, part.size(), raw(part));
}

}  // namespace

Nonce random_nonce() {
    Nonce nonce;
    ssize_t got;
    do {
        got = getrandom(nonce.data(), nonce.size(), 0);
    } while (got < 0 && errno == EINTR);
    if (got != static_cast<ssize_t>(nonce.size())) {
        base::throw_errno(got < 0 ? errno : EIO, "prepare a handshake", "random bytes",
                          "does a filter forbid getrandom?");
    }
    return nonce;
}

Digest prove(const Secret& secret, std::string_view label,
             std::initializer_list<std::span<const std::byte>> parts) {
    hmac_sha256_ctx context;
    hmac_sha256_set_key(&context, secret.bytes().size(), raw(secret.bytes()));
    add(context, std::as_bytes(std::span{label}));
    for (const std::span<const std::byte> part : parts) add(context, part);
    Digest digest;
    static_assert(sizeof digest == SHA256_DIGEST_SIZE);
    hmac_sha256_digest(&context, digest.size(), reinterpret_cast<std::uint8_t*>(digest.data()));
    explicit_bzero(&context, sizeof context);
    return digest;
}

bool equal(const Digest& one, const Digest& other) noexcept {
    return memeql_sec(one.data(), other.data(), one.size()) != 0;
}

}  // namespace millrace::connect
