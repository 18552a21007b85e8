// The seam between the engine and its tables: from a hash to the chain of the items that have it,
// under a lock. A table knows neither keys nor memory nor time; items of other hashes may be in the
// same chain.
#pragma once

#include <cstdint>
#include <memory>

#include "budget.hpp"
#include "item.hpp"
#include "millrace/kv/detail/function_ref.hpp"

namespace millrace::kv {

class Table {
  public:
    /// Of what stands at the head of a chain. Changes it as it likes, but leaves an item where it
    /// is called by insert().
    using Change = FunctionRef<void(Item*& head)>;
    using Look = FunctionRef<void(Item* head)>;

    Table() = default;
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;
    virtual ~Table() = default;

    /// Calls with the chain, if there is one; nobody changes it meanwhile.
    virtual void look(std::uint64_t hash, Look look) const = 0;
    /// Calls with the chain, if there is one.
    virtual void change(std::uint64_t hash, Change change) noexcept = 0;
    /// Calls with the chain, which may be empty. False: it did not, the table cannot grow.
    [[nodiscard]] virtual bool insert(std::uint64_t hash, Change change) noexcept = 0;

    virtual void prefetch(std::uint64_t hash) const noexcept = 0;

    enum class Room : std::uint8_t {
        there,
        wanted,  ///< it is about to grow, and saves for it: slabs should give some back
        none,    ///< so many items as it can hold, and no memory to grow
    };
    /// Before one more than `items` are put in. `may_save`: slabs can give memory back.
    [[nodiscard]] virtual Room make_room(std::uint64_t items, bool may_save) noexcept = 0;
};

/// Throws std::bad_alloc.
[[nodiscard]] std::unique_ptr<Table> make_cuckoo_table(Budget& budget);
[[nodiscard]] std::unique_ptr<Table> make_thesis_table(Budget& budget);

}  // namespace millrace::kv
