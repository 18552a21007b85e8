// What the machine allows where requests travel in batches: two processes, and nothing of ours
// between them. A batch is a mark, its number, and `window` messages after it, each with a word of
// its own; the side that waits looks at the mark.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bench/framework/pair.hpp"
#include "bench/framework/payload.hpp"
#include "measure_message.hpp"
#include "millrace/base/detail/shared_lines.hpp"

namespace millrace::bench {
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t word = sizeof(std::uint64_t);
constexpr std::size_t payload_bytes = 64;
constexpr std::size_t entry = word + payload_bytes;

/// Batches of one client in one direction, seen from one side.
class Places {
  public:
    Places(std::byte* memory, std::size_t window, const BareSetting& setting) noexcept
        : begin_{memory},
          end_{memory + setting.places * stride(window, setting)},
          here_{memory},
          bytes_{used(window)},
          stride_{stride(window, setting)} {}

    static std::size_t used(std::size_t window) noexcept {
        return (word + window * entry + line - 1) / line * line;
    }
    static std::size_t stride(std::size_t window, const BareSetting& setting) noexcept {
        return std::max(setting.stride, used(window));
    }
    static std::size_t bytes(std::size_t window, const BareSetting& setting) noexcept {
        constexpr std::size_t page = 4096;
        return (setting.places * stride(window, setting) + page - 1) / page * page;
    }

    [[nodiscard]] std::byte* message(std::size_t index) const noexcept {
        return here_ + word + index * entry + word;
    }
    [[nodiscard]] bool has_come(std::uint64_t number) const noexcept {
        return mark().load(std::memory_order_acquire) == number;
    }
    void ask_for_all() const noexcept {
        for (std::size_t at = line; at < bytes_; at += line) __builtin_prefetch(here_ + at);
    }
    /// Behind the last message of a batch.
    void show(std::uint64_t number) noexcept {
        mark().store(number, std::memory_order_release);
        go_on();
    }
    void read() noexcept {
        if (base::readers_take_lines()) base::take_lines(here_, bytes_);
        go_on();
    }

  private:
    [[nodiscard]] std::atomic_ref<std::uint64_t> mark() const noexcept {
        return std::atomic_ref{*reinterpret_cast<std::uint64_t*>(here_)};
    }
    void go_on() noexcept {
        here_ += stride_;
        if (here_ == end_) here_ = begin_;
    }
    std::byte* begin_;
    std::byte* end_;
    std::byte* here_;  ///< the batch that is laid, or awaited
    std::size_t bytes_;
    std::size_t stride_;
};

/// Of all clients: requests, after them answers.
std::vector<Places> places_of(const Pair& pair, const BareSetting& setting, bool answers) {
    const std::size_t bytes = Places::bytes(setting.window, setting);
    std::vector<Places> made;
    for (std::size_t i = 0; i != setting.clients; ++i) {
        made.emplace_back(pair.shared() + (answers ? setting.clients + i : i) * bytes,
                          setting.window, setting);
    }
    return made;
}

}  // namespace

double bare_batches(const BareSetting& setting) {
    const std::uint64_t in_a_round = setting.clients * setting.window;
    const std::uint64_t rounds = std::max<std::uint64_t>(setting.requests / in_a_round, 2);
    return run_pair(
        {.shared_bytes = 2 * setting.clients * Places::bytes(setting.window, setting)},
        [&](Pair& pair) {
            std::vector<Places> requests = places_of(pair, setting, false);
            std::vector<Places> answers = places_of(pair, setting, true);
            std::array<std::byte, payload_bytes> request{};
            const auto send = [&](Places& to, std::uint64_t round) {
                for (std::size_t k = 0; k != setting.window; ++k) {
                    stamp(request.data(), request.size(), round * setting.window + k);
                    std::byte* const place = to.message(k);
                    std::memcpy(place - word, &round, word);
                    std::memcpy(place, request.data(), request.size());
                }
                to.show(round);
            };
            const auto receive = [&](Places& from, std::uint64_t round) {
                pair.spin_until([&] { return from.has_come(round); });
                from.ask_for_all();
                for (std::size_t k = 0; k != setting.window; ++k) {
                    const std::byte* const answer = from.message(k);
                    keep(read_all(answer, payload_bytes));
                    require_intact(stamped(answer, payload_bytes, round * setting.window + k),
                                   "an answer");
                }
                from.read();
            };
            pair.meet();
            for (Places& to : requests) send(to, 1);
            const auto start = base::Clock::now();
            for (std::uint64_t round = 2; round <= rounds; ++round) {
                for (std::size_t i = 0; i != setting.clients; ++i) {
                    receive(answers[i], round - 1);
                    send(requests[i], round);
                }
            }
            for (Places& from : answers) receive(from, rounds);
            return static_cast<double>(rounds * in_a_round) / nanoseconds_since(start) * 1e9;
        },
        [&](Pair& pair) {
            std::vector<Places> requests = places_of(pair, setting, false);
            std::vector<Places> answers = places_of(pair, setting, true);
            pair.meet();
            for (std::uint64_t round = 1; round <= rounds; ++round) {
                for (std::size_t i = 0; i != setting.clients; ++i) {
                    Places& from = requests[i];
                    Places& to = answers[i];
                    pair.spin_until([&] { return from.has_come(round); });
                    from.ask_for_all();
                    for (std::size_t k = 0; k != setting.window; ++k) {
                        std::memcpy(to.message(k) - word, from.message(k) - word, entry);
                    }
                    // Before the answer, after which its client writes there again.
                    from.read();
                    to.show(round);
                }
            }
        });
}

}  // namespace millrace::bench
