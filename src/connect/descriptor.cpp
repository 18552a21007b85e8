// The descriptors that children made by fork close, see the header.
#include "descriptor.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "millrace/base/detail/forks.hpp"

namespace millrace::connect {
namespace {

struct Registry {
    std::mutex mutex;
    std::vector<int> open;
};

/// Never destroyed: a process may fork while its static objects go.
Registry& registry() {
    static Registry* const the_one = [] {
        auto* const made = new Registry;
        base::count_forks();
        // Held across the fork, so that the child finds the list whole.
        pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                       [] {
                           for (const int number : registry().open) close(number);
                           registry().open.clear();
                           registry().mutex.unlock();
                       });
        return made;
    }();
    return *the_one;
}

}  // namespace

std::uint32_t Descriptor::generation() noexcept { return base::forks(); }

std::uint32_t Descriptor::adopt(int number) {
    try {
        Registry& all = registry();
        const std::scoped_lock lock{all.mutex};
        all.open.push_back(number);
        return generation();
    } catch (...) {
        close(number);
        throw;
    }
}

void Descriptor::release(int number) noexcept {
    Registry& all = registry();
    // Closed under the lock: a fork must not find a number in the list that is someone else's.
    const std::scoped_lock lock{all.mutex};
    const auto found = std::find(all.open.begin(), all.open.end(), number);
    if (found != all.open.end()) {
        *found = all.open.back();
        all.open.pop_back();
    }
    close(number);
}

}  // namespace millrace::connect
