// What keyed fan-outs say of their owners.
#include "millrace/flow/rebalance.hpp"

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::flow::detail {

void refuse_owner(std::uint64_t number, const char* why, const char* remedy) {
    throw base::Error{base::ErrorCode::invalid_argument, "add an owner of keys",
                      fmt::format("number {}", number), why, remedy};
}

std::string explain_owners(std::span<const std::uint64_t> owners, std::uint32_t epoch) {
    constexpr std::size_t most = 16;
    std::string text = fmt::format("{} owners of keys, who have changed {} times:", owners.size(),
                                   epoch == 0 ? 0 : epoch - 1);
    for (const std::uint64_t owner : owners.subspan(0, std::min(owners.size(), most))) {
        text += fmt::format(" {}", owner);
    }
    return text + (owners.size() > most ? " …\n" : "\n");
}

}  // namespace millrace::flow::detail
