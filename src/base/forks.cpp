// Counting forks, and telling copies in children that they are some; see the header.
#include "millrace/base/detail/forks.hpp"

#include <pthread.h>

#include <mutex>
#include <string>
#include <utility>

#include "millrace/base/error.hpp"

namespace millrace::base {

void refuse_copy(std::string attempted, std::string object) {
    throw Error{ErrorCode::invalid_argument, std::move(attempted), std::move(object),
                std::string{copy_in_child}, std::string{remedy_of_copy}};
}

void count_forks() noexcept {
    [[maybe_unused]] static const int registered = pthread_atfork(
        nullptr, nullptr, [] { detail::forks.fetch_add(1, std::memory_order_relaxed); });
}

struct ForkWatch::All {
    std::mutex mutex;
    ForkWatch* first = nullptr;

    /// Never destroyed: a process may fork while its static objects go.
    static All& of_process() noexcept {
        static All* const the_one = [] {
            auto* const made = new All;
            count_forks();
            // Held across the fork, so that the child finds the list whole.
            pthread_atfork([] { of_process().mutex.lock(); }, [] { of_process().mutex.unlock(); },
                           [] {
                               for (ForkWatch* watch = of_process().first; watch != nullptr;
                                    watch = watch->behind_) {
                                   watch->tell_(watch->whom_);
                               }
                               of_process().mutex.unlock();
                           });
            return made;
        }();
        return *the_one;
    }
};

ForkWatch::ForkWatch(Tell tell, void* whom) noexcept : tell_{tell}, whom_{whom} {
    All& all = All::of_process();
    const std::scoped_lock lock{all.mutex};
    behind_ = all.first;
    if (behind_ != nullptr) behind_->before_ = this;
    all.first = this;
}

ForkWatch::~ForkWatch() {
    All& all = All::of_process();
    const std::scoped_lock lock{all.mutex};
    (before_ != nullptr ? before_->behind_ : all.first) = behind_;
    if (behind_ != nullptr) behind_->before_ = before_;
}

}  // namespace millrace::base
