// Takes all that a completion queue has. Used by ends by SEND, and by those whose one queue serves
// many ends.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "millrace/verbs/completion_queue.hpp"

namespace millrace::message {

/// Calls `take(const verbs::Completion&)` for each that is there. Never blocks. False: the queue
/// has failed.
template <class Take>
bool each_completion(verbs::CompletionQueue& queue, Take&& take) noexcept {
    std::array<verbs::Completion, 16> batch;
    while (true) {
        const int count = queue.poll(batch);
        if (count <= 0) return count == 0;
        for (const verbs::Completion& completion :
             std::span{batch}.first(static_cast<std::size_t>(count))) {
            take(completion);
        }
        if (static_cast<std::size_t>(count) < batch.size()) return true;
    }
}

}  // namespace millrace::message
