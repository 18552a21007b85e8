// How a thread of the library finds that the program has no thread any more, see the header.
#include "millrace/base/detail/own_threads.hpp"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace millrace::base {
namespace {

std::atomic<unsigned> own_threads{0};

/// When the library is loaded, and not with the first such thread: a child that is forked while
/// that one sets it up would wait for it for ever.
[[maybe_unused]] const int none_in_children =
    pthread_atfork(nullptr, nullptr, [] { own_threads.store(0, std::memory_order_relaxed); });

}  // namespace

OwnThread::OwnThread() noexcept { own_threads.fetch_add(1, std::memory_order_relaxed); }

OwnThread::~OwnThread() { own_threads.fetch_sub(1, std::memory_order_relaxed); }

void end_with_program() noexcept {
    // A first thread that has ended stays in the process, but has no program any more.
    char target[1];
    if (readlink("/proc/self/exe", target, sizeof target) >= 0 || errno != ENOENT) return;
    struct stat threads {};
    if (stat("/proc/self/task", &threads) != 0) return;
    // A folder for each thread, and two names of their own folder.
    if (threads.st_nlink != 3 + own_threads.load(std::memory_order_relaxed)) return;
    static std::atomic_flag ending;
    if (!ending.test_and_set()) std::exit(0);
}

}  // namespace millrace::base
