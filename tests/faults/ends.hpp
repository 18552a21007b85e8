// One way to put numbered items into any abstraction and to take them out again, so that each
// fault is tried on all of them. Used by every test in this folder.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/deadline.hpp"
#include "millrace/base/status.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/ring/every_design.hpp"

namespace millrace::faults {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;

/// Abstractions that move items from one process to another. Beside these, a kind is any design of
/// a flow queue as ring::to_string writes it; with "bytes:" before it, of one of frames.
inline constexpr const char* kinds[] = {"flow1", "flow2", "bytes1", "bytes2", "message", "stream"};
inline constexpr std::string_view framed_prefix = "bytes:";

/// The 33 points of the design space as kinds, of items.
[[nodiscard]] inline std::vector<std::string> every_point() {
    std::vector<std::string> all;
#define MILLRACE_ADD(D) all.push_back(ring::to_string(D));
    MILLRACE_EVERY_DESIGN(MILLRACE_ADD)
#undef MILLRACE_ADD
    return all;
}
/// One way in which a point can be run.
[[nodiscard]] inline std::string some_way(const std::string& point, std::mt19937_64& random) {
    static constexpr const char* batches[] = {"", "+fixed", "+dynamic"};
    static constexpr const char* movers[] = {"", "+mover"};
    const std::string way = point + batches[random() % 3] + movers[random() % 2];
    return random() % 2 == 0 ? way : std::string{framed_prefix} + way;
}
/// As the name of a test.
[[nodiscard]] inline std::string test_name_of(std::string kind) {
    for (char& c : kind) c = c == '/' ? '_' : c;
    return kind;
}

[[nodiscard]] inline std::string unique_address() {
    static std::atomic<int> number{0};
    return "unix:@millrace-faults-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

[[nodiscard]] inline base::WaitPolicy policy_of(std::string_view name) {
    if (name == "polling") return base::WaitPolicy::polling();
    if (name == "blocking") return base::WaitPolicy::blocking();
    return {};
}

/// Every byte of an item follows from its number.
struct Item {
    std::uint64_t words[8];

    [[nodiscard]] static Item make(std::uint64_t number) noexcept {
        Item item;
        for (std::uint64_t i = 0; i < 8; ++i) item.words[i] = number * 0x9e3779b97f4a7c15 + i;
        return item;
    }
    [[nodiscard]] bool is(std::uint64_t number) const noexcept {
        const Item right = make(number);
        return std::memcmp(this, &right, sizeof right) == 0;
    }
    /// Frames and messages carry between 1 and 8 words of it.
    [[nodiscard]] static std::size_t bytes_of(std::uint64_t number) noexcept {
        return 8 + number % 57;
    }
};

struct Setup {
    std::string address;
    std::uint64_t capacity = 64;  ///< items, of the size of Item
    base::WaitPolicy wait{};
};

/// The end that items go into.
class Out {
  public:
    virtual ~Out() = default;
    virtual Status put(std::uint64_t number, const Deadline& deadline) = 0;
    virtual Status close(const Deadline& deadline) = 0;
    /// Why the other end is lost; else empty.
    [[nodiscard]] virtual std::string failure() const = 0;
};

/// The end that items come out of.
class In {
  public:
    virtual ~In() = default;
    /// `ok` with `right` false: what came is not item `number`.
    virtual Status take(std::uint64_t number, bool& right, const Deadline& deadline) = 0;
    virtual void close() = 0;
    [[nodiscard]] virtual std::string failure() const = 0;
};

/// The ends of a kind over any design. Throws base::Error.
[[nodiscard]] std::unique_ptr<Out> make_out(std::string_view kind, const Setup& setup, bool listens,
                                            const Deadline& deadline);
[[nodiscard]] std::unique_ptr<In> make_in(std::string_view kind, const Setup& setup, bool listens,
                                          const Deadline& deadline);

}  // namespace millrace::faults
