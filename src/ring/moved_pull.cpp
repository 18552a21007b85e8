// MovedPull, see the header.
#include "millrace/ring/detail/moved_pull.hpp"

#include <cstdint>

namespace millrace::ring::detail {

MovedPull::MovedPull(connect::Link& link, verbs::RemoteAddress source, ibv_sge landing,
                     std::uint64_t word)
    : window_{link.second_queue_pair(), link.second_send_queue()},
      pull_{window_, source, landing, word},
      mover_{DataMover::of_this_process()},
      word_{word} {
    mover_->add(*this);
}

MovedPull::~MovedPull() {
    if (mover_ != nullptr) mover_->remove(*this);
}

bool MovedPull::take() noexcept {
    if (window_.reap() != base::Status::ok) broken_.store(true, std::memory_order_relaxed);
    if (!pull_.poll() || pull_.value() == word_.load(std::memory_order_relaxed)) return false;
    word_.store(pull_.value(), std::memory_order_release);
    return true;
}

MovedFlow::Next MovedPull::move() noexcept {
    if (window_.broken()) return Next::idle;
    bool newer = false;
    if (pull_.pending()) {
        newer = take();
        if (pull_.pending()) return Next::waiting;
    }
    // What is wanted from here on is wanted by who has not seen the word of this READ.
    if (wanted_.exchange(false, std::memory_order_seq_cst)) {
        if (pull_.start() == base::Status::ok) {
            posted_.store(pull_.posted(), std::memory_order_relaxed);
            newer = take() || newer;
        } else if (window_.broken()) {
            broken_.store(true, std::memory_order_relaxed);
        }
        if (pull_.pending() && !newer) return Next::waiting;
    }
    return newer ? Next::moved : Next::idle;
}

}  // namespace millrace::ring::detail
