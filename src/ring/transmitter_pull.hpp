// What sends of pull data: nothing but word of what there is to be pulled. Included by the files
// that make Senders.
#pragma once

#include "millrace/ring/detail/transmitter.hpp"

#include <cstdint>

namespace millrace::ring::detail {

using base::Status;

template <Design D>
PullTransmitter<D>::PullTransmitter(connect::Link link, const Terms& terms,
                                    const verbs::RegisteredBuffer& memory, Design design,
                                    const RingOptions& options)
    : TransmitterBase<D>{std::move(link), terms, memory, design, options} {}

template <Design D>
void PullTransmitter<D>::meet(const Places& theirs, PeerMemory& peer,
                              const verbs::RegisteredBuffer& memory, const RingOptions& options,
                              const verbs::RegisteredBuffer* ring,
                              std::shared_ptr<std::byte> /*peer_ring*/) {
    TransmitterBase<D>::meet(theirs, peer, memory, options);
    this->ring_ = ring->data();
}

template <Design D>
Status PullTransmitter<D>::push(bool /*only_whole*/) noexcept {
    if (this->ended() != Status::ok) return this->ended();
    if (this->laid_ == this->intransit_) return this->tell();
    const bool wake = this->bell_.publish(this->laid_);
    this->intransit_ = this->laid_;
    const Status told = this->tell();
    if (wake) (void)this->bell_.ring();
    return told;
}

template <Design D>
Status PullTransmitter<D>::settle() noexcept {
    if (!this->reap()) return this->lost();
    return this->tell();
}

}  // namespace millrace::ring::detail
