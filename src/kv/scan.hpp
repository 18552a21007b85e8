// A walk over all items in pieces, which misses none that is there all the while, however it
// changes meanwhile; what changes may be met twice. Any number of walks at a time; a cursor may go
// on in another connection, and one that is given up costs nothing.
//
//   cursor   18 bits: a number, from 1 | 2 bits: the round | 43 bits: where it is (Cursor)
//            0: a new walk
//
// An item that is set to another length lies elsewhere from then on, perhaps where the walk has
// been. So a walk knows the moment it began at (Store::Moment). If items have moved since, its last
// piece looks at all of them once more, and hands out those that are newer than that moment; all,
// if some have moved that kept their version. Where that is too much for one piece, another round
// hands these out in pieces, with a number and a moment of its own.
//
// The moments of the last numbers are kept; a walk that so many others have overtaken hands out
// every item once more at its end. A cursor that nobody was given is at its end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "millrace/kv/detail/function_ref.hpp"
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
    /// In place of what finish() has handed out, before any client changes anything: a cursor that
    /// hands it out in pieces. end(): the walk has gone round as often as it may.
    [[nodiscard]] std::uint64_t go_round(std::uint64_t cursor);
    [[nodiscard]] static bool may_go_round(std::uint64_t cursor) noexcept;
    [[nodiscard]] static constexpr std::uint64_t end() noexcept { return 0; }

  private:
    struct Walk {
        std::uint64_t number = 0;
        Version since = 0;  ///< it hands out what is newer
        Store::Moment begin{};
    };
    static constexpr std::size_t kept = 1024;

    // With the mutex.
    [[nodiscard]] std::uint64_t begin_walk(Version since);
    [[nodiscard]] bool is_given_out(std::uint64_t number) const noexcept;
    /// Null: it is forgotten.
    [[nodiscard]] const Walk* find(std::uint64_t number) const noexcept;
    /// What is newer may have been missed by the walk.
    [[nodiscard]] Version missed_since(std::uint64_t number) const noexcept;

    const Store* store_;
    std::mutex mutex_;             ///< of all
    std::uint64_t given_out_ = 0;  ///< numbers, again and again
    std::array<Walk, kept> walks_{};
};

}  // namespace millrace::kv
