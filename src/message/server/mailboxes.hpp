// Which clients have written: the one place of the server where Polling makes a difference. Used by
// the server alone.
//
//   flag    where the next frame of each client will begin, and its tag, side by side. A look loads
//           the word there: a cache line for each client.
//   dense   one byte for each client in registered memory, all side by side. The client sets it
//           after each frame: by a store, or by a WRITE of 1 byte after the frame's on the same
//           queue pair. A scan of vectors finds the next that is set; no ring is looked at.
//           Where each client has a protection domain of its own, each has a registration of its
//           own byte there, and of nothing else.
//
// A byte is a hint, and nothing more. Messages lie in rings, each of which serves one connection
// (ring/carrier.hpp) and whose frames bear its secret: whatever is in the array, by a former client
// of the place, by one that sets the bytes of others, or by the server itself to come back to a
// client, costs a look at a ring.
//
// No message is lost in between. The client lays a frame, then stores 1 to its byte (release, or
// the order of one queue pair). The server exchanges the byte with 0, then looks at the ring until
// there is nothing, or sets the byte again itself. Before the exchange it may take a message, which
// then does not wait for that: it costs a cache line's way. Let the exchange be the last one before
// a look that missed a frame. If the client's store of 1 after that frame came before the exchange
// in the order of the byte's changes, the exchange has read it or a later one, and by acquiring it
// the look after it sees the frame. So the store came after the exchange; it stands, or a later
// exchange took it, and was followed by a look. models/mailbox.pml checks this.
//
// Source: work 001, sections 4.2.2 and 4.2.3.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/message/detail/frame_reader.hpp"
#include "millrace/message/detail/mailbox_scan.hpp"
#include "millrace/message/session.hpp"
#include "millrace/verbs/memory.hpp"

namespace millrace::message {

/// One thread: the server's.
class Mailboxes {
  public:
    /// Places are numbered from 0. `dense`: registered in `common`, the domain of all clients; if
    /// there is none, byte by byte, by grant(). Throws Error.
    Mailboxes(Polling polling, std::size_t places, verbs::ProtectionDomain* common,
              ScanKernel kernel)
        : polling_{polling}, scan_{scan_by(kernel)} {
        if (polling != Polling::dense) {
            awaited_.resize(places, nobody);
            return;
        }
        memory_ = verbs::Buffer{places};
        if (common != nullptr) {
            common_ = common->register_memory(memory_.bytes(), verbs::Access::remote_write);
        } else {
            granted_.resize(places);
        }
    }
    ~Mailboxes() {
        end(common_);
        for (verbs::MemoryRegion& region : granted_) end(region);
    }
    Mailboxes(const Mailboxes&) = delete;
    Mailboxes& operator=(const Mailboxes&) = delete;

    [[nodiscard]] Polling polling() const noexcept { return polling_; }

    /// The first place in [from, to) whose client seems to have written; `to` if there is none.
    [[nodiscard, gnu::always_inline]] std::size_t next(std::size_t from,
                                                       std::size_t to) const noexcept {
        if (polling_ == Polling::dense) return scan_(memory_.data(), from, to);
        // A look at nothing is some instructions, of which the loop's would be as many.
        const FrameReader::Awaited* const all = awaited_.data();
        for (; from + 4 <= to; from += 4) {
            if (all[from].arriving()) return from;
            if (all[from + 1].arriving()) return from + 1;
            if (all[from + 2].arriving()) return from + 2;
            if (all[from + 3].arriving()) return from + 3;
        }
        while (from < to && !all[from].arriving()) ++from;
        return from < to ? from : to;
    }
    /// While the server waits for any of so many places: the second line of a frame travels with
    /// its first, if few clients may write, or if it is of the client that wrote `last`.
    [[gnu::always_inline]] void ask_for_second_lines(std::size_t places,
                                                     std::size_t last) const noexcept {
        constexpr std::size_t few = 4;
        if (polling_ == Polling::dense) return;
        if (places > few) return awaited_[last].ask_for_second_line();
        for (std::size_t i = 0; i != places; ++i) awaited_[i].ask_for_second_line();
    }
    /// Before the look at the ring of a place that next() gave.
    [[gnu::always_inline]] void take(std::size_t place) noexcept {
        if (polling_ != Polling::dense) return;
        box(place).exchange(0, std::memory_order_seq_cst);
        base::heard_from_peers();
    }
    /// After it: where the next frame is awaited, and whether there is more to be looked at.
    [[gnu::always_inline]] void looked(std::size_t place,
                                       const FrameReader::Awaited& next) noexcept {
        if (polling_ != Polling::dense) {
            awaited_[place] = next;
        } else if (next.arriving()) {
            remind(place);
        }
    }
    /// The same where take() did not come before the look at the ring, but a message was there. The
    /// byte stands as long as there are more; it is exchanged before the look that finds none.
    [[gnu::always_inline]] void served(std::size_t place,
                                       const FrameReader::Awaited& next) noexcept {
        if (polling_ != Polling::dense) {
            awaited_[place] = next;
        } else if (!next.arriving()) {
            take(place);
            if (next.arriving()) remind(place);
        }
    }
    /// next() shall give this place once more, whatever the client does.
    void remind(std::size_t place) noexcept {
        if (polling_ == Polling::dense) box(place).store(1, std::memory_order_relaxed);
    }
    /// next() shall give this place, of a client without a ring, until leave_out() or looked().
    void tell(std::size_t place) noexcept {
        if (polling_ != Polling::dense) {
            awaited_[place] = told;
        } else {
            remind(place);
        }
    }
    /// The place of no client that is served now. By bytes next() may give it still.
    void leave_out(std::size_t place) noexcept {
        if (polling_ != Polling::dense) awaited_[place] = nobody;
    }

    /// The byte of a place, for its client, whose queue pair is of `domain`. Only dense. Throws
    /// Error (resource_exhausted). After it comes withdraw(), while that domain is there still.
    [[nodiscard]] verbs::RemoteAddress grant(std::size_t place, verbs::ProtectionDomain& domain) {
        if (granted_.empty()) return common_.remote(place);
        withdraw(place);
        granted_[place] =
            domain.register_memory(memory_.bytes().subspan(place, 1), verbs::Access::remote_write);
        return granted_[place].remote();
    }
    /// What was granted means nothing any more, and nothing of it is under way.
    void withdraw(std::size_t place) noexcept {
        if (!granted_.empty()) end(granted_[place]);
    }

  private:
    alignas(8) static constexpr std::byte never[8]{};
    /// Zeroes are no header of this tag.
    static constexpr FrameReader::Awaited nobody{never, ~std::uint64_t{0}};
    /// … but of this one they are.
    static constexpr FrameReader::Awaited told{never, 0};

    void end(verbs::MemoryRegion& region) noexcept {
        if (!region.deregister()) memory_.quarantine();
    }
    [[nodiscard]] std::atomic_ref<std::uint8_t> box(std::size_t place) noexcept {
        return std::atomic_ref<std::uint8_t>{
            *reinterpret_cast<std::uint8_t*>(memory_.data() + place)};
    }

    Polling polling_;
    Scan scan_;
    verbs::Buffer memory_;                         ///< dense
    verbs::MemoryRegion common_;                   ///< … of all of it, for all
    std::vector<verbs::MemoryRegion> granted_{};   ///< … or of each byte for its client, by place
    std::vector<FrameReader::Awaited> awaited_{};  ///< flag
};

}  // namespace millrace::message
