#include "ringing.hpp"

#include <unistd.h>

#include "fabric.hpp"
#include "millrace/base/system_calls.hpp"
#include "millrace/base/uncancelled.hpp"

namespace millrace::soft {

void ring_bell(int descriptor) noexcept {
    const base::Uncancelled held;
    if (descriptor < 0) return;
    const char byte = 1;
    [[maybe_unused]] const ssize_t written = write(descriptor, &byte, 1);
    base::count_system_call();
}

int PeerBell::descriptor(PeerNode& peer, int number) noexcept {
    if (number_ != number) {
        number_ = number;
        pipe_.reset();
        try {
            if (number >= 0) pipe_ = peer.bell(number);
        } catch (...) {  // no memory for it
        }
    }
    return pipe_ == nullptr ? -1 : pipe_->get();
}

}  // namespace millrace::soft
