// How items come to a consumer: setup, and what the data flows have in common. Included by the
// files that make Receivers.
#pragma once

#include "millrace/ring/detail/intake.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace millrace::ring::detail {

template <Design D>
IntakeBase<D>::IntakeBase(connect::Link& link, const Terms& terms)
    : low_water_{terms.ring_bytes / 10} {
    if constexpr (D.transfer == TransferNotification::immediate) {
        transfer_ = TransferView<D.transfer>{link, terms.receive_pool, terms.initial};
    }
}

template <Design D>
void IntakeBase<D>::meet(const Meeting& met) {
    const std::uint64_t initial = met.terms.initial;
    if constexpr (D.transfer == TransferNotification::push) {
        transfer_ = TransferView<D.transfer>{met.page().transfer, initial};
    } else if constexpr (D.transfer == TransferNotification::pull) {
        const ibv_sge landing = met.memory.slice(offsetof(ReceiverPage, transfer_landing), 8);
        PeerWord counter = met.peer.word(met.theirs.transfer);
        // Where it is a load, no mover need do it.
        if (met.design.mover == Mover::active && counter == nullptr) {
            transfer_ = TransferView<D.transfer>{
                std::make_unique<MovedPull>(met.link, met.theirs.transfer, landing,
                                            PositionWord::pack(initial)),
                initial};
        } else {
            CounterPull pull{met.window, met.theirs.transfer, landing};
            pull.load_from(std::move(counter));
            transfer_ = TransferView<D.transfer>{met.window, std::move(pull), initial};
        }
    }
}

}  // namespace millrace::ring::detail
