// Which sub-rings the poller of a completion queue looks at. All of them while they are few. Beyond
// that, those that have had something lately: the others announce themselves in a page of bits
// (news_page.hpp). Part of CompletionQueue, behind its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fabric/fabric.hpp"
#include "layout/news_page.hpp"

namespace millrace::soft {

struct CompletionSource;

/// The one word of a sub-ring that an idle poller looks at: is the next entry there?
struct Watch {
    const std::atomic<std::uint32_t>* sequence;
    std::uint32_t expected;
};

class CompletionTurns {
  public:
    /// Up to so many sub-rings need no bits: eight queue pairs.
    static constexpr std::size_t without_bits = 16;
    /// With bits, so many are looked at even if they have had nothing for a while.
    static constexpr std::size_t kept = 4;

    CompletionTurns() = default;
    ~CompletionTurns();
    CompletionTurns(const CompletionTurns&) = delete;
    CompletionTurns& operator=(const CompletionTurns&) = delete;

    /// Throws std::bad_alloc and then has changed nothing. `node`: where the page comes from.
    void add(CompletionSource& source, Node& node);
    void remove(CompletionSource& source) noexcept;

    /// Every sub-ring.
    [[nodiscard]] const std::vector<CompletionSource*>& all() const noexcept { return all_; }
    /// Those to be looked at now.
    [[nodiscard]] const std::vector<CompletionSource*>& current() const noexcept {
        return current_;
    }
    /// A word for each of those, and for the page.
    [[nodiscard]] const std::vector<Watch>& watches() const noexcept { return watches_; }
    [[nodiscard]] bool by_bits() const noexcept { return page_ != nullptr; }

    /// `source` has another position, or flushes no longer.
    void moved(const CompletionSource& source) noexcept;
    /// Takes in those that announced themselves.
    void take_news() noexcept {
        if (page_ != nullptr && page_->rung.load(std::memory_order_acquire) != 0) read_bits();
    }
    /// Takes in those that flush.
    void take_flushing() noexcept;
    /// Every now and then: leaves out those that have had nothing since the last time, and takes
    /// in some that somebody forgot to announce.
    void refresh() noexcept;

    /// The next few of all, for what has to be done to each some time; all of them without bits.
    template <class Action>
    void some(Action&& action) {
        if (page_ == nullptr) {
            for (CompletionSource* source : all_) action(*source);
            return;
        }
        for (std::size_t i = 0; i < served_slice && i < all_.size(); ++i) {
            if (++next_served_ >= all_.size()) next_served_ = 0;
            action(*all_[next_served_]);
        }
    }

  private:
    /// At each refresh. Looking after one costs some 50 ns, and a refresh comes every 10 µs.
    static constexpr std::size_t served_slice = 4;
    static constexpr std::size_t swept_slice = 8;

    void use_bits(Node& node) noexcept;
    void bind(CompletionSource& source) noexcept;
    void unbind(CompletionSource& source) noexcept;
    void note_watched(const CompletionSource& source, bool watched) noexcept;
    void set_bit(const CompletionSource& source) noexcept;
    void read_bits() noexcept;
    void take_in(CompletionSource& source) noexcept;
    void leave_out(CompletionSource& source) noexcept;
    /// False: it had something after all.
    [[nodiscard]] bool retire(CompletionSource& source) noexcept;
    [[nodiscard]] Watch watch_of(const CompletionSource& source) const noexcept;

    std::vector<CompletionSource*> all_;
    std::vector<CompletionSource*> current_;
    std::vector<Watch> watches_;  ///< as current_; with bits, one more for the page
    std::size_t next_served_ = 0;
    std::size_t next_swept_ = 0;
    // With bits:
    Node* node_ = nullptr;
    std::optional<Block> block_;
    NewsPage* page_ = nullptr;
    bool refused_ = false;                     ///< there was no page to be had
    std::vector<CompletionSource*> by_bit_;    ///< nullptr: free
    std::vector<std::uint64_t> watched_bits_;  ///< of those in current_
    std::size_t used_words_ = 0;               ///< bits beyond have never been given
};

}  // namespace millrace::soft
