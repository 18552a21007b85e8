#include "kept.hpp"

#include <chrono>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/forks.hpp"

namespace millrace::verbs {
namespace {

struct KeptThing {
    const ibv_context* device = nullptr;
    std::function<bool()> give_back;
};
/// Not destroyed: buffers may be given back after main.
struct NotGivenBack {
    std::mutex mutex;
    std::vector<KeptThing> all;
    base::Clock::time_point tried;
    base::ForkWatch fork_watch{*this};

    /// A child has nothing of its parent's to give back. Another thread may have held the lock, and
    /// been in the middle of a change.
    void become_copy() noexcept {
        new (&mutex) std::mutex;
        new (&all) std::vector<KeptThing>;
    }
};
NotGivenBack& not_given_back() noexcept {
    static NotGivenBack& all = *new NotGivenBack;
    return all;
}

constexpr std::chrono::milliseconds between_tries{100};

}  // namespace

void keep(const ibv_context* device, std::function<bool()> give_back) noexcept {
    NotGivenBack& here = not_given_back();
    const std::scoped_lock lock{here.mutex};
    try {
        here.all.push_back({device, std::move(give_back)});
    } catch (const std::bad_alloc&) {
        // Then it is only kept.
    }
}

void forget_kept(const ibv_context* device) noexcept {
    NotGivenBack& here = not_given_back();
    const std::scoped_lock lock{here.mutex};
    std::erase_if(here.all, [&](const KeptThing& one) { return one.device == device; });
}

void try_kept() noexcept {
    NotGivenBack& here = not_given_back();
    const std::unique_lock lock{here.mutex, std::try_to_lock};
    if (!lock || here.all.empty()) return;
    const auto now = base::Clock::now();
    if (now - here.tried < between_tries) return;
    here.tried = now;
    std::erase_if(here.all, [](const KeptThing& one) { return one.give_back(); });
}

}  // namespace millrace::verbs
