#include "completion/completion_ring.hpp"

#include "layout/completion_stamp.hpp"

namespace millrace::soft {

void CompletionRing::open(const BlockView& block, Of of, const Owner& owner, bool asymmetric,
                          Counters& counters) noexcept {
    close();
    const bool sends = of == Of::sends;
    armed_ = sends ? &block.control->armed_send : &block.control->armed_receive;
    position_ = sends ? &block.send->completions : &block.consumed->position;
    entries_ = sends ? block.send_ring : block.receive_ring;
    mask_ = sends ? block.send_mask : block.receive_mask;
    stamps_ = sends ? block.send_stamps : block.receive_stamps;
    bell_number_ = sends ? &block.control->bell_send : &block.control->bell_receive;
    news_word_ = sends ? &block.news->send : &block.news->receive;
    asymmetric_ = asymmetric;
    counters_ = &counters;
    owner_ = owner;
}

void CompletionRing::attend(std::uint32_t position, bool solicited, std::uint32_t before) noexcept {
    if ((before & armed_stamps) != 0 && stamps_ != nullptr) {
        put_stamp(stamps_[position & mask_], position);
    }
    ring(solicited, before);
}

void CompletionRing::ring(bool solicited, std::uint32_t before) noexcept {
    std::uint32_t now = armed();
    // What is written before these fences is seen by who arms behind them, or we see that it did.
    if ((now & armed_fenced) != 0) full_fence();
    if ((now & armed_news) != 0) announce();
    if ((now & (armed_fenced | armed_news)) != 0) now = armed_->load(std::memory_order_seq_cst);
    if (rung_.must_ring(now, before, solicited)) wake();
}

void CompletionRing::wake() noexcept {
    const int bell = owner_.peer == nullptr ? owner_.bell : bell_of_peer();
    if (bell < 0) return;
    counters_->add(Count::bell);
    ring_bell(bell);
}

int CompletionRing::bell_of_peer() noexcept {
    return bell_.descriptor(*owner_.peer, bell_number_->load(std::memory_order_relaxed));
}

void CompletionRing::announce() noexcept {
    if (owner_.peer == nullptr) {
        NewsPage* const page = owner_.news->page.load(std::memory_order_acquire);
        if (page != nullptr) page->tell(owner_.news->bit);
        return;
    }
    const std::uint64_t word = news_word_->load(std::memory_order_relaxed);
    if (news_.word != word) {
        news_ = Announcement{word, nullptr};
        try {
            news_.page = owner_.peer->news_page(index_of_news(word), generation_of_news(word));
        } catch (...) {  // no memory for it: the poller finds the completion all the same, later
            news_.word = 0;
        }
    }
    if (news_.page != nullptr) news_.page->tell(bit_of_news(word));
}

}  // namespace millrace::soft
