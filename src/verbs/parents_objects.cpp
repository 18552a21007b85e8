// The open devices of this process and of those that it was forked from, see the header.
#include "parents_objects.hpp"

#include <pthread.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "millrace/base/detail/forks.hpp"

namespace millrace::verbs {
namespace {

struct OpenDevices {
    std::mutex mutex;
    std::map<const ibv_context*, std::uint32_t> opened_in;  ///< base::forks() of then
};

/// Never destroyed, as devices may be closed after main. Its mutex is held over fork.
OpenDevices& open_devices() {
    static OpenDevices* const the_one = [] {
        auto* const made = new OpenDevices;
        base::count_forks();
        pthread_atfork([] { open_devices().mutex.lock(); }, [] { open_devices().mutex.unlock(); },
                       [] { open_devices().mutex.unlock(); });
        return made;
    }();
    return *the_one;
}

}  // namespace

void note_opened(const ibv_context* context) {
    OpenDevices& all = open_devices();
    const std::scoped_lock lock{all.mutex};
    all.opened_in[context] = base::forks();
}

void note_closed(const ibv_context* context) noexcept {
    OpenDevices& all = open_devices();
    const std::scoped_lock lock{all.mutex};
    all.opened_in.erase(context);
}

bool is_parents(const ibv_context* context) noexcept {
    OpenDevices& all = open_devices();
    const std::scoped_lock lock{all.mutex};
    const auto found = all.opened_in.find(context);
    return found != all.opened_in.end() && found->second != base::forks();
}

}  // namespace millrace::verbs
