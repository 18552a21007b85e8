// Counting against a budget, see the header.
#include "ledger.hpp"

#include <string>

#include <fmt/format.h>

#include "wire.hpp"

namespace millrace::connect {
namespace {

void check(std::uint64_t limit, std::uint64_t given, std::uint64_t more, std::string_view what) {
    if (more <= limit && given <= limit - more) return;
    const std::string asked =
        more == 1 ? std::string{} : fmt::format(" (this one needs {} more)", more);
    throw Failure{base::ErrorCode::refused,
                  fmt::format("the listener {} at most, and has {}{}",
                              fmt::vformat(what, fmt::make_format_args(limit)), given, asked),
                  "come again when others have left, or give the listener a larger budget"};
}

}  // namespace

void Ledger::take(const Given& more) {
    const std::lock_guard guard{mutex_};
    check(budget_.clients, given_.clients, more.clients, "serves {} clients");
    check(budget_.queue_pairs, given_.queue_pairs, more.queue_pairs, "has {} queue pairs");
    check(budget_.registered_bytes, given_.registered_bytes, more.registered_bytes,
          "registers {} bytes");
    given_.clients += more.clients;
    given_.queue_pairs += more.queue_pairs;
    given_.registered_bytes += more.registered_bytes;
}

void Ledger::give_back(const Given& taken) noexcept {
    const std::lock_guard guard{mutex_};
    given_.clients -= taken.clients;
    given_.queue_pairs -= taken.queue_pairs;
    given_.registered_bytes -= taken.registered_bytes;
}

Given Ledger::given() const noexcept {
    const std::lock_guard guard{mutex_};
    return given_;
}

std::uint32_t Ledger::choose(std::uint32_t wanted) noexcept {
    const std::lock_guard guard{mutex_};
    std::size_t chosen = wanted;
    if (wanted >= listeners_.size() || listeners_[wanted].is_closed) {
        chosen = last_ % listeners_.size();
        for (std::size_t step = 0; step < listeners_.size(); ++step) {
            const std::size_t index = (last_ + step) % listeners_.size();
            const Listening& best = listeners_[chosen];
            const Listening& one = listeners_[index];
            if (!one.is_closed && (best.is_closed || one.peers < best.peers)) chosen = index;
        }
        last_ = chosen + 1;
    }
    ++listeners_[chosen].peers;
    return static_cast<std::uint32_t>(chosen);
}

void Ledger::leave(std::uint32_t listener) noexcept {
    const std::lock_guard guard{mutex_};
    --listeners_[listener].peers;
}

void Ledger::close(std::uint32_t listener) noexcept {
    const std::lock_guard guard{mutex_};
    listeners_[listener].is_closed = true;
}

}  // namespace millrace::connect
