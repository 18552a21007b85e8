#include "completion/completion_turns.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "completion/completion_source.hpp"
#include "fabric/node.hpp"
#include "receives/receive_pool.hpp"
#include "system/fences.hpp"

namespace millrace::soft {
namespace {

[[nodiscard]] std::atomic<std::uint64_t>& news_word(const CompletionSource& source) noexcept {
    NewsLine& news = *source.block->news;
    return source.send ? news.send : news.receive;
}

}  // namespace

CompletionTurns::~CompletionTurns() {
    // Nobody writes to it any more: executors are out of a queue pair before it is removed.
    if (block_) node_->free_block(*block_, false);
}

void CompletionTurns::add(CompletionSource& source, Node& node) {
    // All that may be needed later, so that polling allocates nothing.
    all_.reserve(all_.size() + 1);
    current_.reserve(all_.capacity());
    watches_.reserve(all_.capacity() + 1);
    all_.push_back(&source);
    source.index_ = not_current;
    source.place.page.store(nullptr, std::memory_order_relaxed);
    if (page_ == nullptr) {
        take_in(source);
        if (all_.size() > without_bits && !refused_) use_bits(node);
    } else {
        bind(source);
        if (source.place.page.load(std::memory_order_relaxed) == nullptr) take_in(source);
    }
}

void CompletionTurns::remove(CompletionSource& source) noexcept {
    if (std::erase(all_, &source) == 0) return;
    if (source.index_ != not_current) leave_out(source);
    if (page_ != nullptr) unbind(source);
}

Watch CompletionTurns::watch_of(const CompletionSource& source) const noexcept {
    const std::uint32_t at = source.position.load(std::memory_order_relaxed);
    if (source.collects_from != nullptr && !source.holds(at)) [[unlikely]] {
        std::uint32_t expected = 0;
        const auto* const word = source.collects_from->next_arrival(expected);
        return Watch{word, expected};
    }
    return Watch{&source.entry(at).sequence, sequence_of(at)};
}

void CompletionTurns::moved(const CompletionSource& source) noexcept {
    if (source.index_ != not_current) watches_[source.index_] = watch_of(source);
}

void CompletionTurns::take_in(CompletionSource& source) noexcept {
    if (source.index_ != not_current) return;
    source.index_ = current_.size();
    source.quiet_since_ = source.position.load(std::memory_order_relaxed) - 1;
    current_.push_back(&source);
    if (page_ == nullptr) {
        watches_.push_back(watch_of(source));
        return;
    }
    watches_.push_back(watches_.back());  // the page's stays the last
    watches_[source.index_] = watch_of(source);
    note_watched(source, true);
}

void CompletionTurns::leave_out(CompletionSource& source) noexcept {
    const std::size_t index = source.index_;
    current_[index] = current_.back();
    current_[index]->index_ = index;
    watches_[index] = watches_[current_.size() - 1];
    current_.pop_back();
    if (page_ != nullptr) {
        watches_[current_.size()] = watches_.back();
        note_watched(source, false);
    }
    watches_.pop_back();
    source.index_ = not_current;
}

void CompletionTurns::note_watched(const CompletionSource& source, bool watched) noexcept {
    if (source.place.page.load(std::memory_order_relaxed) == nullptr) return;
    std::uint64_t& word = watched_bits_[source.place.bit / 64];
    const std::uint64_t mask = std::uint64_t{1} << source.place.bit % 64;
    word = watched ? word | mask : word & ~mask;
}

void CompletionTurns::set_bit(const CompletionSource& source) noexcept {
    page_->word[source.place.bit / 64].fetch_or(std::uint64_t{1} << source.place.bit % 64,
                                                std::memory_order_seq_cst);
}

void CompletionTurns::use_bits(Node& node) noexcept {
    refused_ = true;  // not asked for again
    try {
        by_bit_.assign(NewsPage::bits, nullptr);
        watched_bits_.assign(NewsPage::words, 0);
        block_ = node.allocate_block(page_size, BlockUse::other);
    } catch (const std::exception&) {  // as if there were no block
    }
    if (!block_) return;  // polled as a queue of few, which only takes longer
    node_ = &node;
    page_ = new (block_->memory) NewsPage{};
    watches_.push_back(Watch{&page_->rung, 1});
    for (CompletionSource* source : all_) {
        bind(*source);
        if (source->place.page.load(std::memory_order_relaxed) == nullptr) continue;
        note_watched(*source, true);
        set_bit(*source);
    }
    // Who completes without having seen that there are bits is seen by the first look without.
    heavy_fence();
}

void CompletionTurns::bind(CompletionSource& source) noexcept {
    // Datagrams come to a ring when they are collected: somebody has to look.
    if (source.collects_from != nullptr) return;
    const auto free = std::find(by_bit_.begin(), by_bit_.end(), nullptr);
    if (free == by_bit_.end()) return;  // looked at each time
    const auto bit = static_cast<std::uint32_t>(free - by_bit_.begin());
    *free = &source;
    used_words_ = std::max(used_words_, std::size_t{bit} / 64 + 1);
    source.place.bit = bit;
    source.place.page.store(page_, std::memory_order_release);
    news_word(source).store(make_news_word(block_->generation, block_->index, bit),
                            std::memory_order_release);
    std::atomic<std::uint32_t>& armed = source.armed();
    armed.store(armed.load(std::memory_order_relaxed) | armed_news, std::memory_order_release);
}

void CompletionTurns::unbind(CompletionSource& source) noexcept {
    if (source.place.page.exchange(nullptr, std::memory_order_relaxed) == nullptr) return;
    by_bit_[source.place.bit] = nullptr;
    page_->word[source.place.bit / 64].fetch_and(~(std::uint64_t{1} << source.place.bit % 64));
}

void CompletionTurns::read_bits() noexcept {
    page_->rung.exchange(0, std::memory_order_seq_cst);
    for (std::size_t w = 0; w < used_words_; ++w) {
        std::uint64_t fresh = page_->word[w].load(std::memory_order_seq_cst) & ~watched_bits_[w];
        for (; fresh != 0; fresh &= fresh - 1) {
            const auto bit = static_cast<std::size_t>(std::countr_zero(fresh));
            if (CompletionSource* const source = by_bit_[64 * w + bit]; source != nullptr) {
                take_in(*source);
            } else {
                page_->word[w].fetch_and(~(std::uint64_t{1} << bit));  // nobody's
            }
        }
    }
}

void CompletionTurns::take_flushing() noexcept {
    if (page_ == nullptr) return;
    for (CompletionSource* source : all_) {
        if (source->flushing.load(std::memory_order_acquire)) take_in(*source);
    }
}

bool CompletionTurns::retire(CompletionSource& source) noexcept {
    std::atomic<std::uint64_t>& word = page_->word[source.place.bit / 64];
    const std::uint64_t mask = std::uint64_t{1} << source.place.bit % 64;
    word.fetch_and(~mask, std::memory_order_seq_cst);
    full_fence();  // against the one in NewsPage::tell
    if (source.holds(source.position.load(std::memory_order_relaxed)) ||
        source.flushing.load(std::memory_order_acquire)) {
        word.fetch_or(mask, std::memory_order_seq_cst);
        return false;
    }
    leave_out(source);
    return true;
}

void CompletionTurns::refresh() noexcept {
    if (page_ == nullptr) return;
    for (std::size_t i = 0; i < current_.size() && current_.size() > kept;) {
        CompletionSource& source = *current_[i];
        const std::uint32_t at = source.position.load(std::memory_order_relaxed);
        const bool quiet = source.quiet_since_ == at;
        source.quiet_since_ = at;
        const bool stays = source.place.page.load(std::memory_order_relaxed) == nullptr;
        if (!quiet || stays || !retire(source)) ++i;
    }
    for (std::size_t i = 0; i < swept_slice && i < all_.size(); ++i) {
        if (++next_swept_ >= all_.size()) next_swept_ = 0;
        CompletionSource& source = *all_[next_swept_];
        if (source.index_ == not_current &&
            source.holds(source.position.load(std::memory_order_relaxed))) {
            set_bit(source);
            take_in(source);
        }
    }
}

}  // namespace millrace::soft
