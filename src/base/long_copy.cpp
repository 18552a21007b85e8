#include "millrace/base/detail/long_copy.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/copy_bytes.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define MILLRACE_TELLS_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MILLRACE_TELLS_THREAD_SANITIZER 1
#endif
#endif
#if defined(MILLRACE_TELLS_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#endif

namespace millrace::base {

/// The median forgives that the system took the processor away during one of them.
float CopyChoice::typical() noexcept {
    const std::uint32_t count = compared(trial_);
    std::nth_element(last_.begin(), last_.begin() + count / 2, last_.begin() + count);
    return last_[count / 2];
}

void CopyChoice::note(float cost) noexcept {
    last_[left_ % compared(trial_)] = cost;
    if (--left_ != 0) return;
    const auto other = [](Way way) { return way == Way::cached ? Way::streaming : Way::cached; };
    if (!is_trying_) {
        chosen_cost_ = typical();
        is_trying_ = true;
        next_ = other(chosen_);
        left_ = trial_;
        return;
    }
    const float tried = typical();
    // A little faster is not worth a change.
    constexpr float enough = 0.95F;
    if (tried < chosen_cost_ * enough) chosen_ = next_;
    const float worse = std::max(tried, chosen_cost_) / std::min(tried, chosen_cost_) - 1;
    // Whatever the costs were: not a number is not less.
    const float between = 100 * static_cast<float>(trial_) * worse;
    const std::uint32_t most = most_between(trial_);
    left_ = between < static_cast<float>(most)
                ? std::max(static_cast<std::uint32_t>(between), fewest_between(trial_))
                : most;
    next_ = chosen_;
    is_trying_ = false;
}

namespace {

constexpr std::size_t word = sizeof(std::uint64_t);

/// `bytes`: up to a word, which end at a word's boundary or, if they are fewer, behind one.
void store_end(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if defined(MILLRACE_TELLS_THREAD_SANITIZER)
    // Whoever polls one byte of it synchronises with that byte's address.
    for (std::size_t i = 0; i < bytes; ++i) __tsan_release(to + i);
#endif
    if (bytes == word) {
        std::uint64_t value = 0;
        std::memcpy(&value, from, word);
        std::atomic_ref{*reinterpret_cast<std::uint64_t*>(to)}.store(value,
                                                                     std::memory_order_release);
        return;
    }
    for (std::size_t i = 0; i < bytes; ++i) {
        std::atomic_ref{*reinterpret_cast<std::uint8_t*>(to + i)}.store(
            std::to_integer<std::uint8_t>(from[i]), std::memory_order_release);
    }
}

#if defined(__x86_64__)

constexpr std::size_t line_bytes = 64;

/// Whole lines, each with four stores one behind the other, so that it leaves as one.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    const std::size_t head =
        (line_bytes - reinterpret_cast<std::uintptr_t>(to) % line_bytes) % line_bytes;
    std::memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    const std::size_t done = detail::copy_by_lines(
        to, from, bytes, [](__m128i* at, __m128i value) { _mm_stream_si128(at, value); });
    // Before what tells of them: these stores keep no order by themselves.
    _mm_sfence();
    std::memcpy(to + done, from + done, bytes - done);
}

/// One for each power of two from least_long_copy on; the last one for all that is longer.
constexpr std::size_t sizes = 10;

/// Trials of no more than 64 MiB, where eight copies are less.
constexpr std::array<CopyChoice, sizes> all_choices() noexcept {
    std::array<CopyChoice, sizes> all{};
    for (std::size_t i = 0; i < sizes; ++i) {
        const std::size_t of = (std::size_t{64} << 20) / (least_long_copy << i);
        all[i] = CopyChoice{
            static_cast<std::uint32_t>(std::clamp<std::size_t>(of, 8, CopyChoice::trial))};
    }
    return all;
}
constinit thread_local std::array<CopyChoice, sizes> choices = all_choices();

#endif

}  // namespace

void copy_for_peer(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(to + bytes) % word;
    const std::size_t body = bytes - (beyond == 0 ? word : beyond);
#if defined(__x86_64__)
    constexpr auto least = static_cast<std::size_t>(std::bit_width(least_long_copy));
    const auto width = std::max(static_cast<std::size_t>(std::bit_width(bytes)), least);
    CopyChoice& choice = choices[std::min(width - least, sizes - 1)];
    if (choice.begin(ticks(), bytes) == CopyChoice::Way::cached) {
        copy_bytes(to, from, body);
    } else {
        copy_past_caches(to, from, body);
    }
    choice.end(ticks());
#else
    std::memcpy(to, from, body);
#endif
    store_end(to + body, from + body, bytes - body);
}

}  // namespace millrace::base
