// What a ring can be, by its options.
#include "millrace/ring/options.hpp"

#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/ring/design_name.hpp"
#include "millrace/ring/terms.hpp"

namespace millrace::ring {

std::uint64_t slot_bytes(const ItemFacts& item, Design design) noexcept {
    return item.size == 0 ? 0 : slot_bytes_of(item.size, item.alignment, has_marks(design));
}

void check(const RingOptions& options, const ItemFacts& item, Design design) {
    const auto refuse = [](std::string object, std::string cause, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "set up a ring", std::move(object),
                          std::move(cause), std::move(remedy)};
    };
    if (!std::has_single_bit(item.alignment) || item.alignment > 4096) {
        refuse(fmt::format("items aligned to {}", item.alignment),
               "an alignment is a power of two of at most 4096", "align the item type to less");
    }
    const std::uint64_t slot = slot_bytes(item, design);
    const std::uint64_t smallest = slot != 0                        ? slot
                                   : design.data == DataFlow::push2 ? 64
                                                                    : 2 * frame_bytes(1);
    if (smallest > RingOptions::max_bytes) {
        refuse(fmt::format("items of {} bytes aligned to {}", item.size, item.alignment),
               fmt::format("not one of them fits in the largest ring, {} bytes",
                           RingOptions::max_bytes),
               "send framed bytes in pieces");
    }
    const std::uint64_t most = slot == 0 ? RingOptions::max_bytes : RingOptions::max_bytes / slot;
    const std::uint64_t least = slot == 0 ? smallest : 1;
    if (options.capacity && (*options.capacity < least || *options.capacity > most)) {
        refuse(fmt::format("a ring of {} {}", *options.capacity, slot == 0 ? "bytes" : "items"),
               fmt::format("the capacity must be {} to {}", least, most),
               slot == 0 ? "give the ring at least twice the largest frame and 32 bytes"
                         : "choose a capacity in that range");
    }
    if (options.receive_pool == 0 || options.receive_pool > RingOptions::max_pool) {
        refuse(fmt::format("a pool of {} receives", options.receive_pool),
               fmt::format("the pool must have 1 to {} receives", RingOptions::max_pool),
               "choose a number in that range");
    }
    if (options.batch) {
        if (design.batching == Batching::none) {
            refuse(fmt::format("batches of {} items", *options.batch),
                   fmt::format("the design {} sends each item at once", to_string(design)),
                   "choose a design with batching, such as +fixed or +dynamic, or name no batch");
        }
        if (*options.batch == 0 || *options.batch > RingOptions::max_batch) {
            refuse(fmt::format("batches of {} items", *options.batch),
                   fmt::format("a batch has 1 to {} items", RingOptions::max_batch),
                   "choose a number in that range");
        }
        if (slot != 0 && options.capacity && *options.batch > *options.capacity) {
            refuse(fmt::format("batches of {} items", *options.batch),
                   fmt::format("the ring holds {}, so a batch would never be complete",
                               *options.capacity),
                   "choose smaller batches or a larger ring");
        }
    }
    if (!(options.refresh_above >= 0 && options.refresh_above <= 1)) {
        refuse(fmt::format("refresh_above = {}", options.refresh_above),
               "it is a part of the ring, 0 to 1", "use 0.5 if in doubt");
    }
    if (options.credit_parts < 1 || options.credit_parts > 65536) {
        refuse(fmt::format("credit_parts = {}", options.credit_parts), "it must be 1 to 65536",
               "use 8 if in doubt");
    }
    if (options.own_transfer_queue && design.transfer != TransferNotification::push) {
        refuse("own_transfer_queue",
               fmt::format("the design {} pushes no notification of transfers that could have one",
                           to_string(design)),
               "choose a design with transfer push, or leave it out");
    }
}

}  // namespace millrace::ring
