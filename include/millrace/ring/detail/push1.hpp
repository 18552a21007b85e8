// DataFlow::push1: runs of bytes from the producer's ring to the same place in the consumer's, with
// WRITEs, or, where the carrier is to store, with copies. The producer's half; the consumer's half
// of this flow does nothing.
//
// Where the device keeps the order of one WRITE's bytes, a run is one WRITE. Where it does not, the
// first mark of a run is held back: the WRITE carries zeros in its place, which no mark is, and a
// second WRITE of the same queue pair carries the mark. Requests of one queue pair are executed in
// order, so the mark stands after the whole run, and the consumer cannot pass it. A copy does the
// same: the first mark is a release store after all the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "millrace/base/detail/peer_causality.hpp"
#include "millrace/base/status.hpp"
#include "millrace/ring/detail/end_names.hpp"
#include "millrace/ring/watermark.hpp"
#include "millrace/verbs/memory.hpp"
#include "millrace/verbs/work_request.hpp"

namespace millrace::ring::detail {

/// One thread; never blocks, throws or allocates.
class Push1 {
  public:
    Push1() noexcept = default;
    /// Before any of the calls below. `source` and `target` are rings of one size; `max_inline`:
    /// shorter runs are taken while they are posted.
    void set(const verbs::MemoryRegion& source, verbs::RemoteAddress target,
             std::uint32_t max_inline) noexcept {
        source_ = source.data();
        local_key_ = source.lkey();
        target_ = target;
        max_inline_ = max_inline;
        route_.set(local_key_, target.rkey);
    }
    /// From now on copies to `target`, which is the target's memory. None: posts, as ever.
    void store_to(std::shared_ptr<std::byte> target) noexcept { memory_ = std::move(target); }
    [[nodiscard]] bool stores() const noexcept { return memory_ != nullptr; }

    /// Posts the `bytes` at `offset`. `ok`, `full` (nothing was posted) or `peer_lost`.
    base::Status run(SendWindow& window, std::uint64_t offset, std::uint64_t bytes,
                     Signal signal) noexcept {
        return count(window.post(
            verbs::RoutedWrite{
                .route = &route_,
                .from = reinterpret_cast<std::uint64_t>(source_) + offset,
                .bytes = static_cast<std::uint32_t>(bytes),
                .to = target_.address + offset,
                .flags = bytes <= max_inline_ ? verbs::SendFlags::inlined : verbs::SendFlags::none},
            signal));
    }
    /// As run, and takes a receive of the consumer's for `immediate`.
    base::Status run_with_immediate(SendWindow& window, std::uint64_t offset, std::uint64_t bytes,
                                    std::uint32_t immediate, Signal signal) noexcept {
        const ibv_sge slice = at(offset, bytes);
        return count(window.post(
            verbs::WriteWithImmediate{
                .from = {&slice, 1}, .to = target_ + offset, .immediate = immediate},
            signal));
    }

    /// As run, of what lies at `slices`.
    base::Status run_gathered(SendWindow& window, verbs::Slices slices,
                              std::uint64_t offset) noexcept {
        return count(
            window.post(verbs::Write{.from = slices, .to = target_ + offset}, Signal::now));
    }
    /// As run_gathered, and takes a receive of the consumer's for `immediate`.
    base::Status run_gathered_with_immediate(SendWindow& window, verbs::Slices slices,
                                             std::uint64_t offset,
                                             std::uint32_t immediate) noexcept {
        return count(window.post(
            verbs::WriteWithImmediate{
                .from = slices, .to = target_ + offset, .immediate = immediate},
            Signal::now));
    }

    /// As run, with the 8-byte mark at `mark_offset` (inside the run) in a WRITE of its own.
    base::Status run_then_mark(SendWindow& window, std::uint64_t offset, std::uint64_t bytes,
                               std::uint64_t mark_offset, Signal signal) noexcept {
        if (window.free() < 2 && (window.reap() != base::Status::ok || window.free() < 2)) {
            return window.broken() ? base::Status::peer_lost : base::Status::full;
        }
        const std::uint64_t behind = mark_offset + mark_bytes;
        const std::array<ibv_sge, 3> slices{{at(offset, mark_offset - offset),
                                             at(zeros_, mark_bytes),
                                             at(behind, offset + bytes - behind)}};
        // Slices of no bytes are left out: some devices take a length of 0 for 2 GiB.
        const std::size_t first = slices[0].length == 0 ? 1 : 0;
        const std::size_t last = slices[2].length == 0 ? 2 : 3;
        if (last - first > 1) {
            const base::Status status = count(window.post(
                verbs::Write{.from = {&slices[first], last - first}, .to = target_ + offset}));
            if (status != base::Status::ok) return status;
        }
        const ibv_sge mark = at(mark_offset, mark_bytes);
        return count(
            window.post(verbs::Write{.from = {&mark, 1}, .to = target_ + mark_offset}, signal));
    }
    /// Where the 8 bytes of zeros lie in the source's buffer: after the ring.
    void set_zeros(std::uint64_t offset) noexcept { zeros_ = offset; }

    /// Copies the `bytes` at `offset`, whose consumer is told of them otherwise.
    void copy(std::uint64_t offset, std::uint64_t bytes) noexcept {
        std::memcpy(memory_.get() + offset, source_ + offset, bytes);
        base::telling_peers();
    }
    /// As the one before, and after all of them the mark at `mark_offset`.
    void copy_then_mark(std::uint64_t offset, std::uint64_t bytes,
                        std::uint64_t mark_offset) noexcept {
        const std::uint64_t behind = mark_offset + mark_bytes;
        copy(behind, offset + bytes - behind);
        copy(offset, mark_offset - offset);
        store_word(memory_.get() + mark_offset, load_word(source_ + mark_offset));
    }

    /// WRITEs posted.
    [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }

  private:
    [[nodiscard]] ibv_sge at(std::uint64_t offset, std::uint64_t bytes) const noexcept {
        return {reinterpret_cast<std::uint64_t>(source_) + offset,
                static_cast<std::uint32_t>(bytes), local_key_};
    }
    base::Status count(base::Status status) noexcept {
        if (status == base::Status::ok) [[likely]]
            ++posted_;
        return status;
    }

    const std::byte* source_ = nullptr;
    std::uint32_t local_key_ = 0;
    std::uint32_t max_inline_ = 0;
    verbs::RemoteAddress target_{};
    std::shared_ptr<std::byte> memory_;
    std::uint64_t zeros_ = 0;
    std::uint64_t posted_ = 0;
    verbs::WriteRoute route_;
};

}  // namespace millrace::ring::detail
