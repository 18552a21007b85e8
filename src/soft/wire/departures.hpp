// What a connected queue pair has posted and the wire carries: the send side of roce's state
// machines, in this process's memory. Part of `Connected`, by who holds the queue pair's send side.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "roce/sides.hpp"
#include "completion/completion_ring.hpp"
#include "transport/connection_end.hpp"
#include "transport/key_cache.hpp"
#include "transport/pending_sends.hpp"
#include "transport/pieces.hpp"

namespace millrace::soft {

class WireOwner;

class Departures final : public roce::SendSide {
  public:
    struct Of {
        const BlockView& block;
        const End& end;
        PendingSends& pending;  ///< where requests lie, each in its slot's place
        Counters& counters;
        Node& node;
        bool asymmetric;
    };
    /// Throws std::bad_alloc.
    Departures(const Of& of, WireOwner& owner);
    ~Departures() = default;

    /// Keeps what is posted in `slot`.
    [[nodiscard]] roce::Request take(const ibv_send_wr& wr, std::uint32_t flags,
                                     std::uint32_t slot) noexcept;

    [[nodiscard]] roce::Status gather(std::uint32_t slot, std::uint32_t offset,
                                      std::span<std::uint8_t> to) noexcept override;
    [[nodiscard]] roce::Status scatter(std::uint32_t slot, std::uint32_t offset,
                                       std::span<const std::uint8_t> from) noexcept override;
    [[nodiscard]] roce::Status run_local(std::uint32_t slot) noexcept override;
    void complete(std::uint32_t slot) noexcept override;
    void fail(std::uint32_t, roce::Status status) noexcept override {
        failure_ = static_cast<ibv_wc_status>(status);
    }

    /// What a request has failed with since the last time; success: none has.
    [[nodiscard]] ibv_wc_status take_failure() noexcept {
        return std::exchange(failure_, IBV_WC_SUCCESS);
    }

  private:
    struct Posted {
        std::uint32_t length = 0;
        ibv_wc_status doom = IBV_WC_SUCCESS;  ///< when it comes to its turn
    };
    /// Calls `action(address, bytes)` for each piece of a request from `offset` on. False: the keys
    /// do not allow it.
    template <class Action>
    [[nodiscard]] bool for_each_piece(std::uint32_t slot, std::uint64_t offset,
                                      std::uint64_t bytes, std::uint32_t access,
                                      Action&& action) noexcept;

    const Of of_;
    WireOwner& owner_;
    KeyCache keys_;
    CompletionRing completions_;
    const std::unique_ptr<Posted[]> posted_;
    ibv_wc_status failure_ = IBV_WC_SUCCESS;
};

}  // namespace millrace::soft
