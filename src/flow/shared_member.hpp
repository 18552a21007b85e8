// One producer at the consumer of a shared ring. Used by shared_member.cpp and shared_ring.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "millrace/end/end.hpp"
#include "millrace/end/wake_up.hpp"
#include "millrace/flow/shared_ring.hpp"
#include "shared_facts.hpp"

namespace millrace::flow::detail {

struct SharedMember::State {
    class ItemSleeper final : public end::Sleeper {
      public:
        explicit ItemSleeper(State& state)
            : Sleeper{state.end.link(), state.end.window(), state.page().wake,
                      state.page_memory.region()},
              state_{&state} {}

      private:
        bool is_news(std::uint64_t progress) noexcept override {
            return progress != state_->seat->taken;
        }
        State* state_;
    };

    State(connect::Link link, std::shared_ptr<SharedRing> its_ring);
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State();

    [[nodiscard]] SharedMemberPage& page() noexcept {
        return *reinterpret_cast<SharedMemberPage*>(page_memory.data());
    }
    [[nodiscard]] std::uint64_t attempt() noexcept { return page().attempt.load(); }
    base::Status look_around() noexcept;
    [[nodiscard]] bool is_leaving() const noexcept { return leaves_at.has_value(); }
    /// Tells where the ring has moved to.
    void offer_notice() noexcept;
    void give_up() noexcept {
        const std::array<std::uint64_t, 2> words{seat->taken, shared_expelled};
        end.link().say_goodbye(std::as_bytes(std::span{words}));
    }

    std::shared_ptr<SharedRing> ring;
    verbs::RegisteredBuffer page_memory;  // outlives the queue pair that reaches it
    end::End end;
    std::optional<ItemSleeper> sleeper;
    verbs::RemoteAddress peer_page{};
    std::uint32_t label = 0;
    SharedRing::Seat* seat = nullptr;
    std::optional<std::uint64_t> leaves_at;  ///< the position up to which it may have laid items
    std::optional<SharedNotice> notice;      ///< that is due
};

}  // namespace millrace::flow::detail
