// A point of the design space of flow structures (work 000, chapter 4) as a value that can be a
// template argument, with how it batches and who moves its data (section 6.4), and the rules that
// say which points exist. How a design is written and read: design_name.hpp.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/language.hpp"

namespace millrace::ring {

/// Which end moves the data, and with what (section 4.1).
enum class DataFlow : std::uint8_t {
    push1,  ///< the producer WRITEs
    push2,  ///< the producer SENDs, the consumer posts receives
    pull,   ///< the consumer READs
};

/// How the consumer learns of data (section 4.2).
enum class TransferNotification : std::uint8_t {
    watermark,  ///< a mark that lies next to the data
    push,       ///< the producer WRITEs a counter
    pull,       ///< the consumer READs a counter
    event,      ///< completions of receives; only with push2
    immediate,  ///< completions of WRITEs with immediate data; only with push1
};

/// How the producer learns of space (section 4.3).
enum class SpaceNotification : std::uint8_t {
    push,   ///< the consumer WRITEs a counter
    pull,   ///< the producer READs a counter
    push2,  ///< the consumer SENDs a counter
};

/// When items that were enqueued go on their way (section 6.4).
enum class Batching : std::uint8_t {
    none,     ///< each at once
    fixed,    ///< when so many are there
    dynamic,  ///< when the transfer before is done and the consumer has nothing left to do
};

/// In which thread they do.
enum class Mover : std::uint8_t {
    passive,  ///< in the thread that enqueues, within its calls
    active,   ///< in the process's data mover, a thread that all such queues share
};

/// One point of the space, and how it is run. Structural: `template <Design D>`.
struct Design {
    DataFlow data = DataFlow::push1;
    TransferNotification transfer = TransferNotification::watermark;
    SpaceNotification space = SpaceNotification::push;
    Batching batching = Batching::none;
    Mover mover = Mover::passive;

    friend constexpr bool operator==(const Design&, const Design&) = default;
};

/// True if the three flows fit together: 33 of the 45 combinations.
[[nodiscard]] constexpr bool is_valid(Design design) noexcept {
    if (design.transfer == TransferNotification::event) return design.data == DataFlow::push2;
    if (design.transfer == TransferNotification::immediate) return design.data == DataFlow::push1;
    return true;
}
/// The three flows alone: one of the 33 points. Sender and Receiver are made for these; batching
/// and mover are theirs at run time.
[[nodiscard]] constexpr Design flows_of(Design design) noexcept {
    return {design.data, design.transfer, design.space};
}
/// The same flows, run another way.
[[nodiscard]] constexpr Design with(Design design, Batching batching,
                                    Mover mover = Mover::passive) noexcept {
    return {design.data, design.transfer, design.space, batching, mover};
}

/// True if items carry the marks by which they are seen.
[[nodiscard]] constexpr bool has_marks(Design design) noexcept {
    return design.transfer == TransferNotification::watermark;
}
/// True if every arrival of data leaves a completion of a receive at the consumer.
[[nodiscard]] constexpr bool has_arrivals(Design design) noexcept {
    return design.data == DataFlow::push2 || design.transfer == TransferNotification::immediate;
}

/// Section 5.1: the consumer posts nothing; the producer READs how far it is.
inline constexpr Design design_1{DataFlow::push1, TransferNotification::watermark,
                                 SpaceNotification::pull};
/// Section 5.2: the consumer pushes credit.
inline constexpr Design design_2{DataFlow::push1, TransferNotification::watermark,
                                 SpaceNotification::push};

/// Stops the compilation of a wrong point with a sentence that says what is wrong with it.
template <Design D>
consteval bool check_design() {
    static_assert(D.transfer != TransferNotification::event || D.data == DataFlow::push2,
                  "event notifications are completions of receives: they need DataFlow::push2");
    static_assert(D.transfer != TransferNotification::immediate || D.data == DataFlow::push1,
                  "immediate data travels with a WRITE: it needs DataFlow::push1");
    return true;
}

[[nodiscard]] constexpr std::string_view name_of(DataFlow flow) noexcept {
    switch (flow) {
        case DataFlow::push1: return "push1";
        case DataFlow::push2: return "push2";
        case DataFlow::pull: return "pull";
    }
    return "unknown";
}
[[nodiscard]] constexpr std::string_view name_of(TransferNotification flow) noexcept {
    switch (flow) {
        case TransferNotification::watermark: return "watermark";
        case TransferNotification::push: return "push";
        case TransferNotification::pull: return "pull";
        case TransferNotification::event: return "event";
        case TransferNotification::immediate: return "immediate";
    }
    return "unknown";
}
[[nodiscard]] constexpr std::string_view name_of(SpaceNotification flow) noexcept {
    switch (flow) {
        case SpaceNotification::push: return "push";
        case SpaceNotification::pull: return "pull";
        case SpaceNotification::push2: return "push2";
    }
    return "unknown";
}

[[nodiscard]] constexpr std::string_view name_of(Batching batching) noexcept {
    switch (batching) {
        case Batching::none: return "unbatched";
        case Batching::fixed: return "fixed";
        case Batching::dynamic: return "dynamic";
    }
    return "unknown";
}
[[nodiscard]] constexpr std::string_view name_of(Mover mover) noexcept {
    switch (mover) {
        case Mover::passive: return "passive";
        case Mover::active: return "mover";
    }
    return "unknown";
}

}  // namespace millrace::ring
