#include "completion/ringing.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "fabric/fabric.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/detail/uncancelled.hpp"

namespace millrace::soft {

Descriptor new_bell() noexcept {
    std::array<int, 2> ends{-1, -1};
    if (pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) return {};
    const Descriptor reading{ends[0]}, writing{ends[1]};
    char path[32];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", writing.get());
    return Descriptor{::open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)};
}

void ring_bell(int descriptor) noexcept {
    const base::Uncancelled held;
    if (descriptor < 0) return;
    const char byte = 1;
    [[maybe_unused]] const ssize_t written = write(descriptor, &byte, 1);
    base::count_system_call();
}

bool drain_bell(int descriptor) noexcept {
    const base::Uncancelled held;
    std::array<char, 512> bytes;
    bool found = false;
    for (;;) {
        base::count_system_call();
        const ssize_t got = read(descriptor, bytes.data(), bytes.size());
        found |= got > 0;
        if (got != static_cast<ssize_t>(bytes.size())) return found;
    }
}

int PeerBell::descriptor(PeerNode& peer, int number) noexcept {
    if (number_ != number) {
        pipe_ = number >= 0 ? peer.bell(number) : nullptr;
        number_ = pipe_ == nullptr ? -1 : number;
    }
    return pipe_ == nullptr ? -1 : pipe_->get();
}

}  // namespace millrace::soft
