#include "scan.hpp"

#include <algorithm>

#include "slabs.hpp"

namespace millrace::kv {
namespace {

constexpr int place_bits = Slabs::cursor_bits;
constexpr std::uint64_t place_mask = (std::uint64_t{1} << place_bits) - 1;
constexpr int round_bits = 2;
constexpr std::uint64_t last_round = (std::uint64_t{1} << round_bits) - 1;
/// So that clients that take a cursor for a signed number have a positive one.
constexpr std::uint64_t most_numbers = (std::uint64_t{1} << (63 - place_bits - round_bits)) - 1;

constexpr std::uint64_t number_of(std::uint64_t cursor) {
    return cursor >> place_bits >> round_bits;
}
constexpr std::uint64_t round_of(std::uint64_t cursor) {
    return cursor >> place_bits & last_round;
}
constexpr std::uint64_t cursor_of(std::uint64_t number, std::uint64_t round) {
    return (number << round_bits | round) << place_bits;
}

}  // namespace

std::uint64_t Scans::begin_walk(Version since) {
    const std::uint64_t number = 1 + given_out_++ % most_numbers;
    walks_[number % kept] = {number, since, store_->moment()};
    return number;
}

bool Scans::is_given_out(std::uint64_t number) const noexcept {
    return number != 0 && number <= std::min(given_out_, most_numbers);
}

const Scans::Walk* Scans::find(std::uint64_t number) const noexcept {
    const Walk& walk = walks_[number % kept];
    return walk.number == number ? &walk : nullptr;
}

Version Scans::missed_since(std::uint64_t number) const noexcept {
    const Walk* const walk = find(number);
    const bool tells = walk != nullptr && walk->begin.relocated == store_->moment().relocated;
    return tells ? walk->begin.newest : 0;
}

std::uint64_t Scans::step(std::uint64_t& cursor, std::size_t count, Visit visit) {
    Version since = 0;
    {
        const std::lock_guard lock{mutex_};
        if (cursor == 0) {
            cursor = cursor_of(begin_walk(since), 0);
        } else if (!is_given_out(number_of(cursor))) {
            return end();
        } else if (const Walk* const walk = find(number_of(cursor))) {
            since = walk->since;
        }
    }
    std::size_t met = 0;
    const Cursor next =
        store_->visit_from(static_cast<Cursor>(cursor & place_mask), [&](const Entry& entry) {
            if (entry.version <= since) return true;
            if (met == count) return false;
            visit(entry);
            ++met;
            return true;
        });
    if (next == Cursor::end) return end();
    return (cursor & ~place_mask) | (static_cast<std::uint64_t>(next) & place_mask);
}

void Scans::finish(std::uint64_t cursor, Visit visit) {
    const std::uint64_t number = number_of(cursor);
    Version since = 0;
    {
        const std::lock_guard lock{mutex_};
        if (!is_given_out(number)) return;
        const Walk* const walk = find(number);
        if (walk != nullptr && walk->begin.moved == store_->moment().moved) return;
        since = missed_since(number);
    }
    store_->for_each([&](const Entry& entry) {
        if (entry.version > since) visit(entry);
    });
}

bool Scans::may_go_round(std::uint64_t cursor) noexcept { return round_of(cursor) != last_round; }

std::uint64_t Scans::go_round(std::uint64_t cursor) {
    if (!may_go_round(cursor)) return end();
    const std::lock_guard lock{mutex_};
    return cursor_of(begin_walk(missed_since(number_of(cursor))), round_of(cursor) + 1);
}

}  // namespace millrace::kv
