// Before each result perftest finds out how fast the processor counts: for a fifth of a second it
// compares the cycles with gettimeofday, on both sides, at each size. That is most of the processor
// time of its short runs. Preloaded into it, this is a gettimeofday on which sixteen microseconds
// pass in one: the comparison takes a sixteenth, and what perftest prints is wrong by that factor,
// which these tests do not read. Nothing else of it asks for the time in this way.
#include <sys/time.h>
#include <time.h>

#include <cstdint>

namespace {

constexpr std::int64_t faster = 16;

std::int64_t now() noexcept {
    timespec time{};
    ::clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int gettimeofday(timeval* time, void*) noexcept {
    static const std::int64_t start = now();
    const std::int64_t told = (start + (now() - start) * faster) / 1000;
    time->tv_sec = told / 1'000'000;
    time->tv_usec = told % 1'000'000;
    return 0;
}
