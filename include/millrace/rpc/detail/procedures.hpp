// What a client knows of its server's procedures: the table, and the numbers of those that the
// program asked for. Used by client_core.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/rpc/procedure.hpp"
#include "millrace/rpc/table.hpp"

namespace millrace::rpc::detail {

/// By place: the number of a procedure in this program (place_of). One thread.
class Procedures {
  public:
    [[nodiscard]] bool has(std::size_t place) const noexcept {
        return place < numbers_.size() && numbers_[place] != 0;
    }
    /// Throws Error (invalid_argument): it was not asked for.
    [[nodiscard]] std::uint16_t number_of(std::size_t place) const {
        if (!has(place)) [[unlikely]]
            refuse();
        return numbers_[place];
    }
    /// The server has said that its table is another one now.
    void note_stale() noexcept { needs_table_ = true; }
    [[nodiscard]] bool needs_table() const noexcept { return needs_table_; }

    /// The server's table. Throws Error (invalid_argument): a procedure that was asked for means
    /// something else there.
    void take(std::vector<ProcedureReport> table);
    [[nodiscard]] bool is_in_table(const Signature& signature) const noexcept;
    /// Asks for one that is_in_table(). Throws Error: not_found, it is not there; as take().
    void use(std::size_t place, Signature signature);
    /// A line for each that was asked for.
    [[nodiscard]] std::string explain() const;

  private:
    struct Used {
        std::size_t place;
        Signature signature;
    };
    [[noreturn]] static void refuse();
    void resolve(const Used& used);

    std::vector<std::uint16_t> numbers_;  ///< by place; 0: not asked for, or not there
    std::vector<Used> used_;
    std::vector<ProcedureReport> table_;
    bool needs_table_ = false;
};

}  // namespace millrace::rpc::detail
