// Hazards: who executes now, and in which regions. Written by executors around what they do; read
// by whoever takes a right back and has to know when nobody uses it any more. Included by the
// layouts of blocks, by executors and by fences. docs/soft/fences.md.
//
//   offset 0    word      odd while executing; counts on, so that each time is told from the next
//          8    named     which regions are touched: pairs of keys, that of the sending end in the
//                         upper half, that of the receiving end in the lower one; 0: none.
//                         [0] may be `names_any`; the others count only with `names_more` in it
//
// All of it is written by the thread that executes. Before it looks at a key it has stored `word`
// odd, and the key or `names_any`: before the word, or, where it began with no name, after it and
// before a light fence. Once it has checked all keys of a request it may replace what it has named
// by them, and checks no further key until `word` was even. So
// after a heavy fence, of an odd word: a key that is not named and was taken back before that fence
// is not in use, and never will be. The names are stored with release order: who sees those of a
// later time (because it has lost a race) knows that the earlier one is over.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "system/fences.hpp"

namespace millrace::soft {

inline constexpr std::size_t named_pairs = 3;
inline constexpr std::uint64_t names_any = ~std::uint64_t{0};
inline constexpr std::uint64_t names_none = 0;  ///< no key is looked at, or not yet
inline constexpr std::uint64_t names_more = std::uint64_t{1} << 63;  ///< keys have 31 bits

[[nodiscard]] constexpr std::uint64_t name_pair(std::uint32_t sender,
                                                std::uint32_t receiver) noexcept {
    return std::uint64_t{sender} << 32 | receiver;
}

/// Whose keys the halves of a hazard's pairs are: a process only knows its own.
enum NamedBy : unsigned { named_by_sender = 1, named_by_receiver = 2, named_by_both = 3 };

struct Hazard {
    std::atomic<std::uint64_t> word;
    std::atomic<std::uint64_t> named[named_pairs];

    /// From here on the thread executes, in the regions of `names`. What it got it gives to `end`.
    [[nodiscard]] std::uint64_t begin(bool asymmetric, std::uint64_t names) noexcept {
        named[0].store(names, std::memory_order_release);
        const std::uint64_t odd = word.load(std::memory_order_relaxed) | 1;
        word.store(odd, std::memory_order_release);
        light_fence(asymmetric);
        return odd;
    }
    /// `step`: by which even words count on.
    void end(std::uint64_t odd, std::uint64_t step = 2) noexcept {
        word.store(odd - 1 + step, std::memory_order_release);
    }
    /// The most frequent case: at most one region at either end.
    void name(std::uint32_t sender, std::uint32_t receiver) noexcept {
        named[0].store(name_pair(sender, receiver), std::memory_order_release);
    }
    /// Takes this process's regions out, where there are names.
    void forget(NamedBy mine) noexcept;
};
static_assert(sizeof(Hazard) == 32);

/// Gathers the regions of a request that touches several.
class RegionNames {
  public:
    void add_sender(std::uint32_t key) noexcept { add(senders_, key); }
    void add_receiver(std::uint32_t key) noexcept { add(receivers_, key); }
    /// Keys that are not known yet.
    void add_unknown() noexcept { too_many_ = true; }
    /// Replaces what is named. Where there are more regions than places, that stays.
    void publish(Hazard& hazard) const noexcept;
    /// Before any key is looked at, in place of `names_none`: where there are more, any.
    void announce(Hazard& hazard, bool asymmetric) const noexcept {
        if (too_many_) hazard.named[0].store(names_any, std::memory_order_release);
        publish(hazard);
        light_fence(asymmetric);
    }

  private:
    struct Keys {
        std::array<std::uint32_t, named_pairs> keys{};
        std::size_t count = 0;
    };
    void add(Keys& keys, std::uint32_t key) noexcept;

    Keys senders_;
    Keys receivers_;
    bool too_many_ = false;
};

/// Says "my process executes" while it lives: dereg_mr and destruction on either side wait for it.
/// `names`: the regions, where they are known at once.
class HazardScope {
  public:
    HazardScope(Hazard& hazard, bool asymmetric, std::uint64_t names = names_any,
                std::uint64_t step = 2) noexcept
        : hazard_{hazard}, odd_{hazard.begin(asymmetric, names)}, step_{step} {}
    ~HazardScope() {
        if (odd_ != kept) hazard_.end(odd_, step_);
    }
    /// The hazard outlives this, and there is none after it.
    void keep() noexcept { odd_ = kept; }
    HazardScope(const HazardScope&) = delete;
    HazardScope& operator=(const HazardScope&) = delete;

  private:
    static constexpr std::uint64_t kept = 0;

    Hazard& hazard_;
    std::uint64_t odd_;
    const std::uint64_t step_;
};

}  // namespace millrace::soft
