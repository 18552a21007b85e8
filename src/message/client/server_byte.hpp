// The byte of a client at a server that looks at one byte of each client (Polling::dense): the
// client sets it after each message that it has sent, by a store or by one more WRITE. The
// server's side: mailboxes.hpp. Used by the client (client_end.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lane/ring_lane.hpp"
#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/status.hpp"
#include "millrace/message/session.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::message {

/// One thread. Only find() allocates.
class ServerByte {
  public:
    /// The server looks at one.
    [[nodiscard]] bool exists() const noexcept { return exists_; }
    [[nodiscard]] bool is_stored() const noexcept { return stored_ != nullptr; }
    /// The send window had no slot for the WRITE: tell() is to be called again.
    [[nodiscard]] bool is_owed() const noexcept { return is_owed_; }

    /// `exists`: as the server's welcome says. Its place is found by find() then.
    void reset(bool exists) noexcept {
        exists_ = exists;
        is_owed_ = false;
        stored_ = nullptr;
    }
    /// Where `welcome` says. Precondition: exists().
    void find(RingLane& lane, const Welcome& welcome) {
        remote_ = {welcome.mailbox, welcome.mailbox_rkey};
        stored_ = lane.map(remote_);
        if (stored_ != nullptr) return;
        source_ =
            lane.link().protection_domain().allocate(sizeof(std::uint64_t), verbs::Access::none);
        *source_.data() = std::byte{1};
    }
    /// Sets the byte, after what was sent.
    void tell(RingLane& lane) noexcept {
        if (stored_ != nullptr) [[likely]] {
            base::telling_peers();
            std::atomic_ref<std::uint8_t>{*reinterpret_cast<std::uint8_t*>(stored_.get())}.store(
                1, std::memory_order_release);
            return;
        }
        const ibv_sge one = source_.slice(0, 1);
        is_owed_ = lane.write_byte(one, remote_) == base::Status::full;
    }

  private:
    bool exists_ = false;
    bool is_owed_ = false;
    std::shared_ptr<std::byte> stored_;  ///< the byte itself, where it is addressable
    verbs::RemoteAddress remote_{};      ///< where it is not
    verbs::RegisteredBuffer source_;     ///< of the WRITE
};

}  // namespace millrace::message
