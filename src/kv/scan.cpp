#include "scan.hpp"

#include <algorithm>

#include "slabs.hpp"

namespace millrace::kv {
namespace {

constexpr int place_bits = Slabs::cursor_bits;
constexpr std::uint64_t place_mask = (std::uint64_t{1} << place_bits) - 1;
/// So that clients that take a cursor for a signed number have a positive one.
constexpr std::uint64_t most_numbers = std::uint64_t{1} << (63 - place_bits);

}  // namespace

std::uint64_t Scans::step(std::uint64_t& cursor, std::size_t count, Visit visit) {
    if (cursor == 0) {
        const std::lock_guard lock{mutex_};
        last_ = last_ + 1 == most_numbers ? 1 : last_ + 1;
        walks_[last_ % kept] = {last_, store_->moment()};
        cursor = last_ << place_bits;
    }
    std::size_t met = 0;
    const Cursor next =
        store_->visit_from(static_cast<Cursor>(cursor & place_mask), [&](const Entry& entry) {
            if (met == count) return false;
            visit(entry);
            ++met;
            return true;
        });
    if (next == Cursor::end) return end();
    return (cursor & ~place_mask) | (static_cast<std::uint64_t>(next) & place_mask);
}

void Scans::finish(std::uint64_t cursor, Visit visit) {
    const std::uint64_t number = cursor >> place_bits;
    Version newest = 0;
    {
        const std::lock_guard lock{mutex_};
        const Walk& walk = walks_[number % kept];
        if (walk.number == number) {
            if (walk.begin.moved == store_->moment().moved) return;
            newest = walk.begin.newest;
        }
    }
    store_->for_each([&](const Entry& entry) {
        if (entry.version > newest) visit(entry);
    });
}

}  // namespace millrace::kv
