// How the device comes to plain memory: a copy of a send, or a registration. What the peer's ring
// can take is stored from where it lies, and needs neither.
#include "socket_core.hpp"

#include <exception>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/detail/copy_bytes.hpp"

namespace millrace::stream {

using base::Status;

/// A copy of a plain send, or a registration of it. Throws Error, and leaves it as it is.
void Socket::Core::make_postable(Send& send, bool patient) {
    const std::size_t most =
        options.registrations == nullptr ? most_staged : most_staged_beside_cache;
    std::byte* const copy = send.length <= most ? stage(send.length) : nullptr;
    if (copy == nullptr) {
        send.region =
            registered({const_cast<std::byte*>(send.data), send.length}, verbs::Access::none, true);
        send.lkey = send.region->lkey();
        return;
    }
    base::copy_bytes(copy, send.data, send.length);
    send.data = copy;
    send.lkey = copies->memory.region().lkey();
    send.is_copy = true;
    send.is_patient = patient;
    send.staged_to = copies->places.position();
    ++counts.staged;
}

/// An advertisement has come for bytes of `send`, which are about to be posted. False: that is the
/// end.
bool Socket::Core::lend(Send& send) noexcept {
    try {
        make_postable(send, false);
        send.is_bare = false;
        --bare_sends;
        return true;
    } catch (const std::exception& error) {
        // Some of it may be in the peer's ring: it can neither be sent nor taken back.
        break_off_because([&] {
            return fmt::format("what was to be sent cannot be lent to the device: {}",
                               error.what());
        });
        return false;
    }
}

/// Plain memory, for one operation at least.
RegistrationCache::Held Socket::Core::registered(std::span<std::byte> plain, verbs::Access access,
                                                 bool by_cache) {
    bool is_new = true;
    RegistrationCache::Held region;
    if (by_cache && options.registrations != nullptr) {
        region = options.registrations->find(plain, access, is_new);
    } else {
        region = std::make_shared<const verbs::MemoryRegion>(
            end.link().protection_domain().register_memory(plain, access));
    }
    ++(is_new ? counts.registrations : counts.registrations_kept);
    return region;
}

void Socket::Core::refuse_plain(const char* attempted) const {
    throw base::Error{base::ErrorCode::invalid_argument,
                      fmt::format("{} by a byte stream", attempted),
                      fmt::format("peer {}", end.link().peer_name()),
                      "the memory is not registered with the socket's endpoint, and SocketOptions::"
                      "registered_only asks for that",
                      "take a Slice of a stream::Buffer of that endpoint, or leave the option out"};
}

void Socket::Core::refuse_behind_a_read() const {
    throw base::Error{base::ErrorCode::invalid_argument, "receive by a byte stream",
                      fmt::format("peer {}", end.link().peer_name()),
                      "read_some or read_zero_copy has asked for the bytes that come next, and has "
                      "not read all of them: they would follow those of this receive",
                      "read until nothing of that is left, or receive alone in mode direct"};
}

std::byte* Socket::Core::stage(std::size_t length) {
    if (copies == nullptr) {
        verbs::RegisteredBuffer memory =
            end.link().protection_domain().allocate(staging_bytes, verbs::Access::none);
        const Staging places{memory.data(), staging_bytes};
        copies = std::make_unique<Copies>(Copies{std::move(memory), places});
    }
    return copies->places.claim(length);
}

}  // namespace millrace::stream
