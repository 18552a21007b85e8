#include "millrace/rpc/detail/procedures.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace millrace::rpc::detail {

void Procedures::refuse() {
    throw base::Error{base::ErrorCode::invalid_argument, "call a procedure", "",
                      "the client did not ask the server for it",
                      "name it in connect<...>(), or call use<...>() first"};
}

void Procedures::take(std::vector<ProcedureReport> table) {
    table_ = std::move(table);
    needs_table_ = false;
    for (const Used& used : used_) resolve(used);
}

bool Procedures::is_in_table(const Signature& signature) const noexcept {
    return std::ranges::any_of(
        table_, [&](const ProcedureReport& one) { return one.signature.name == signature.name; });
}

void Procedures::use(std::size_t place, Signature signature) {
    if (!is_in_table(signature)) {
        throw base::Error{
            base::ErrorCode::not_found, "find a procedure", fmt::format("'{}'", signature.name),
            fmt::format("the server has {} procedures, and none of that name", table_.size()),
            "see what it has: millrace rpc list"};
    }
    const Used used{place, std::move(signature)};
    resolve(used);
    used_.push_back(used);
}

void Procedures::resolve(const Used& used) {
    if (numbers_.size() <= used.place) numbers_.resize(used.place + 1);
    numbers_[used.place] = 0;
    for (const ProcedureReport& one : table_) {
        if (one.signature.name != used.signature.name) continue;
        const std::string why = why_different(used.signature, one.signature);
        if (!why.empty()) {
            throw base::Error{base::ErrorCode::invalid_argument, "find a procedure",
                              fmt::format("'{}'", used.signature.name), why,
                              "build both sides from the same declaration of it"};
        }
        numbers_[used.place] = one.number;
        return;
    }
}

std::string Procedures::explain() const {
    std::string text;
    for (const Used& used : used_) {
        text += fmt::format("\n  {} is procedure {}", used.signature.name, numbers_[used.place]);
    }
    return text;
}

}  // namespace millrace::rpc::detail
