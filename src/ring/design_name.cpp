// Names of designs, see the header.
#include "millrace/ring/design_name.hpp"

#include <array>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::ring {
namespace {

[[noreturn]] void refuse(std::string_view name, std::string cause, std::string remedy) {
    throw base::Error{base::ErrorCode::invalid_argument, "read the name of a design",
                      std::string{name}, std::move(cause), std::move(remedy)};
}

/// The value whose name `word` is.
template <class Enum>
Enum parse(std::string_view name, std::string_view word, std::string_view what,
           std::span<const Enum> values) {
    std::string choices;
    for (const Enum value : values) {
        if (name_of(value) == word) return value;
        choices += choices.empty() ? "" : ", ";
        choices += name_of(value);
    }
    refuse(name, fmt::format("\"{}\" is no {}", word, what), fmt::format("use one of {}", choices));
}

constexpr std::array all_data{DataFlow::push1, DataFlow::push2, DataFlow::pull};
constexpr std::array all_transfers{TransferNotification::watermark, TransferNotification::push,
                                   TransferNotification::pull, TransferNotification::event,
                                   TransferNotification::immediate};
constexpr std::array all_spaces{SpaceNotification::push, SpaceNotification::pull,
                                SpaceNotification::push2};

/// Cuts the first part off `rest`, up to `mark`.
std::string_view cut(std::string_view& rest, char mark) {
    const std::size_t end = rest.find(mark);
    const std::string_view part = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    return part;
}

Design parse_flows(std::string_view name, std::string_view flows) {
    if (flows == "design1") return design_1;
    if (flows == "design2") return design_2;
    std::string_view rest = flows;
    const std::string_view data = cut(rest, '/');
    const std::string_view transfer = cut(rest, '/');
    if (data.empty() || transfer.empty() || rest.empty()) {
        refuse(name, fmt::format("\"{}\" does not name three flows", flows),
               "write data/transfer/space, for example push1/watermark/pull");
    }
    return {parse<DataFlow>(name, data, "data flow", all_data),
            parse<TransferNotification>(name, transfer, "transfer notification", all_transfers),
            parse<SpaceNotification>(name, rest, "space notification", all_spaces)};
}

}  // namespace

std::string to_string(Design design, std::optional<std::uint32_t> batch) {
    std::string name = fmt::format("{}/{}/{}", name_of(design.data), name_of(design.transfer),
                                   name_of(design.space));
    if (design.batching != Batching::none) {
        name += fmt::format("+{}", name_of(design.batching));
        if (batch) name += fmt::format("{}", *batch);
    }
    if (design.mover == Mover::active) name += "+mover";
    return name;
}

NamedDesign parse_design(std::string_view name) {
    std::string_view rest = name;
    NamedDesign named{.design = parse_flows(name, cut(rest, '+')), .batch = {}};
    while (!rest.empty()) {
        const std::string_view part = cut(rest, '+');
        const std::size_t digits = part.find_first_of("0123456789");
        const std::string_view word = part.substr(0, digits);
        if (word == "mover" && digits == std::string_view::npos) {
            named.design.mover = Mover::active;
        } else if (word == name_of(Batching::fixed) || word == name_of(Batching::dynamic)) {
            if (named.design.batching != Batching::none) {
                refuse(name, "it names two ways of batching", "name one of fixed, dynamic");
            }
            named.design.batching =
                word == name_of(Batching::fixed) ? Batching::fixed : Batching::dynamic;
            if (digits == std::string_view::npos) continue;
            std::uint32_t number = 0;
            const auto [end, error] =
                std::from_chars(part.data() + digits, part.data() + part.size(), number);
            if (error != std::errc{} || end != part.data() + part.size() || number == 0) {
                refuse(name, fmt::format("\"{}\" is no size of a batch", part.substr(digits)),
                       "write a number of items behind it, for example fixed16");
            }
            named.batch = number;
        } else {
            refuse(name, fmt::format("\"{}\" is no part of a design", part),
                   "use fixed, dynamic (with a number of items behind it, if you like) or mover");
        }
    }
    require_valid(named.design);
    return named;
}

void require_valid(Design design) {
    if (is_valid(design)) return;
    throw base::Error{base::ErrorCode::invalid_argument, "make a flow queue", to_string(design),
                      design.transfer == TransferNotification::event
                          ? "event notifications are completions of receives: they need push2 data"
                          : "immediate data travels with a WRITE: it needs push1 data",
                      "choose one of the 33 points of docs/flow.md"};
}

}  // namespace millrace::ring
