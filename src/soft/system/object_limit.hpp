// How many objects of a kind a process may have of the device: as many as ibv_query_device says.
// Held by the process, taken from by the calls that make such objects.
#pragma once

#include <atomic>
#include <cerrno>
#include <memory>

namespace millrace::soft {

class ObjectLimit {
  public:
    explicit ObjectLimit(int most) noexcept : most_{most} {}

    struct GiveBack {
        void operator()(ObjectLimit* limit) const noexcept {
            limit->taken_.fetch_sub(1, std::memory_order_relaxed);
        }
    };
    /// What an object holds as long as it is there.
    using Place = std::unique_ptr<ObjectLimit, GiveBack>;

    /// Null, with errno ENOMEM, when there are as many as may be. Any thread.
    [[nodiscard]] Place take() noexcept {
        Place place{taken_.fetch_add(1, std::memory_order_relaxed) < most_ ? this : nullptr};
        if (place == nullptr) {
            taken_.fetch_sub(1, std::memory_order_relaxed);
            errno = ENOMEM;
        }
        return place;
    }

  private:
    const int most_;
    std::atomic<int> taken_{0};
};

}  // namespace millrace::soft
