// Reads an item and makes another one of it, as one step: what the doors' commands do that depend
// on what is there. Nobody is locked out meanwhile; where another thread was faster, it reads anew.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "millrace/base/clock.hpp"
#include "millrace/kv/detail/function_ref.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {

/// What becomes of an item.
struct Change {
    enum class Kind : std::uint8_t { none, set, erase };
    Kind kind = Kind::none;
    std::span<const std::byte> value{};  ///< set: stays as it is until change() has returned
    std::optional<base::Clock::time_point> expires_at{};  ///< set: none: it does not
    std::uint64_t note = 0;                               ///< set: Entry::note
};

/// `decide` is given the item, or null if there is none, and must not use the store. It is called
/// again if somebody changed the item before what it decided was done; the last call counts.
/// Outcome: `ok`, also of no change; `full`, `bad_key`, `bad_value`, and nothing was changed.
/// `version`: ok: which the item has then; 0: there is none.
Outcome change(Store& store, std::span<const std::byte> key,
               FunctionRef<Change(const Entry*)> decide, Version* version = nullptr);

}  // namespace millrace::kv
