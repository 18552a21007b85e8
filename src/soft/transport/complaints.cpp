#include "transport/complaints.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>

#include "millrace/base/log.hpp"
#include "system/cable_time.hpp"

namespace millrace::soft {
namespace {

constexpr std::uint32_t free_lines = 8;
constexpr std::int64_t pause_ns = 1'000'000'000;

struct Allowance {
    std::atomic<std::uint32_t> said{0};
    std::atomic<std::int64_t> next{0};
    std::atomic<std::uint64_t> left_out{0};
};

[[nodiscard]] Allowance& allowance_of(Mistake kind) noexcept {
    static std::array<Allowance, static_cast<std::size_t>(Mistake::count)> all;
    return all[static_cast<std::size_t>(kind)];
}

}  // namespace

bool may_complain(Mistake kind) noexcept {
    Allowance& allowance = allowance_of(kind);
    if (allowance.said.fetch_add(1, std::memory_order_relaxed) < free_lines) return true;
    allowance.said.store(free_lines, std::memory_order_relaxed);
    std::int64_t next = allowance.next.load(std::memory_order_relaxed);
    const std::int64_t now = cable_now();
    if (now >= next && allowance.next.compare_exchange_strong(next, now + pause_ns)) return true;
    allowance.left_out.fetch_add(1, std::memory_order_relaxed);
    return false;
}

void say_complaint(Mistake kind, std::string_view text) noexcept {
    const std::uint64_t left_out = allowance_of(kind).left_out.exchange(0);
    if (left_out == 0) return base::log_line(base::LogLevel::error, "soft", text);
    try {
        base::log(base::LogLevel::error, "soft", "{} ({} more like it were not shown)", text,
                  left_out);
    } catch (const std::exception&) {  // a message less
    }
}

}  // namespace millrace::soft
