// A walk over all items in pieces, which misses none that is there all the while, however it
// changes meanwhile; what changes may be met twice. Any number of walks at a time; a cursor may go
// on in another connection, and one that is given up costs nothing.
//
//   cursor   20 bits: the walk's number, from 1 | 43 bits: where it is (Cursor)       0: a new walk
//
// An item that is set to another length lies elsewhere from then on, perhaps where the walk has
// been. So a walk knows the moment it began at (Store::Moment). If items have moved since, its last
// piece looks at all of them once more, and hands out those that are newer than that moment.
//
// The moments of the last walks are kept; a walk that so many others have overtaken hands out every
// item once more at its end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "function_ref.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {

/// Any number of threads.
class Scans {
  public:
    explicit Scans(const Store& store) noexcept : store_{&store} {}

    using Visit = FunctionRef<void(const Entry&)>;
    /// Hands out some `count` items from `cursor` on. The next cursor; or end(): call finish() with
    /// the same cursor, while no client changes anything. `visit` must not use the store.
    [[nodiscard]] std::uint64_t step(std::uint64_t& cursor, std::size_t count, Visit visit);
    void finish(std::uint64_t cursor, Visit visit);
    [[nodiscard]] static constexpr std::uint64_t end() noexcept { return 0; }

  private:
    struct Walk {
        std::uint64_t number = 0;
        Store::Moment begin{};
    };
    static constexpr std::size_t kept = 1024;

    const Store* store_;
    std::mutex mutex_;  ///< of both
    std::uint64_t last_ = 0;
    std::array<Walk, kept> walks_{};
};

}  // namespace millrace::kv
