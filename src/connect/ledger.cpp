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

}  // namespace millrace::connect
