// A reader's filter at its log, see the header.
#include "log/choice.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>

#include <fmt/format.h>

#include "millrace/base/detail/name_hash.hpp"

namespace millrace::flow::detail {
namespace {

constexpr std::size_t largest_alignment = 4096;  // of an item

std::byte* aligned(std::byte* at) noexcept {
    void* place = at;
    std::size_t space = 2 * largest_alignment;
    return static_cast<std::byte*>(std::align(largest_alignment, 1, place, space));
}

std::size_t rounded(std::size_t size) noexcept {
    return (size + largest_alignment - 1) & ~(largest_alignment - 1);
}

}  // namespace

LogChoice::LogChoice(const LogFilterAsked& asked, std::span<const LogFilter> filters)
    : asked_{asked} {
    std::string names;
    for (const LogFilter& filter : filters) {
        const ItemFacts& object = filter.facts.object;
        names += fmt::format("{}'{}'", names.empty() ? "" : ", ", object.name);
        if (base::name_hash(object.name) != asked.name_hash) continue;
        if (object.size == asked.size && object.alignment == asked.alignment) {
            filter_ = &filter;
            return;
        }
        refusal_ = fmt::format(
            "its filter of that name has {} bytes aligned to {}, not {} aligned "
            "to {}",
            object.size, object.alignment, asked.size, asked.alignment);
        return;
    }
    refusal_ = names.empty() ? std::string{"it has none"} : "it has " + names;
}

std::uint64_t LogChoice::room_for(std::uint64_t items, std::uint64_t bytes,
                                  const LogShape& shape) const noexcept {
    const std::size_t made = filter_->facts.made.size;
    // What is made of an item is no longer than the item, of which a record of Bytes has a head.
    const std::uint64_t heads = shape.is_framed() ? 0 : items * log_record_bytes(1);
    return sizeof(LogChosenHead) + (made != 0 ? items * log_record_bytes(made) : bytes + heads);
}

bool LogChoice::ask(std::span<const std::byte> item, std::size_t item_size,
                    std::span<const std::byte>& made, bool& passes) noexcept {
    try {
        const std::size_t made_size = rounded(filter_->facts.made.size);
        if (scratch_.empty()) scratch_.resize(2 * largest_alignment + made_size + item_size);
        std::byte* const scratch = aligned(scratch_.data());
        if (item_size != 0) {
            // Items lie side by side in history, wherever that puts them.
            std::byte* const copy = scratch + made_size;
            std::memcpy(copy, item.data(), item_size);
            item = {copy, item_size};
        }
        passes =
            filter_->ask(asked_.object.data(), item, {scratch, filter_->facts.made.size}, made);
        return true;
    } catch (const std::exception& thrown) {
        reason_ = thrown.what();
    } catch (...) {
        reason_ = "something that is no std::exception";
    }
    return false;
}

LogChoice::Filled LogChoice::fill(std::span<const std::byte> run, std::uint64_t position,
                                  std::uint64_t told, const LogShape& shape,
                                  std::span<std::byte> into) {
    Filled filled{.next = position, .bytes = sizeof(LogChosenHead)};
    while (!run.empty() && !filled.has_thrown) {
        std::span<const std::byte> item;
        std::size_t taken = shape.item_size;
        if (shape.is_framed()) {
            if (!log_record_at(run, item)) break;
            taken = log_record_bytes(item.size());
        } else {
            item = run.first(taken);
        }
        std::span<const std::byte> made;
        bool passes = false;
        filled.has_thrown = !ask(item, shape.item_size, made, passes);
        if (passes && log_record_bytes(made.size()) > into.size() - filled.bytes) {
            if (filled.passed != 0) break;  // it goes with the next frame
            filled.has_thrown = true;
            passes = false;
            reason_ = fmt::format("it made {} bytes, more than a frame holds", made.size());
        }
        if (filled.has_thrown) {
            ++counts_.threw;
            if (stops()) {
                ++counts_.looked;
                break;
            }
        }
        if (passes) {
            const LogChosenRecord record{static_cast<std::uint32_t>(made.size()),
                                         static_cast<std::uint32_t>(filled.next - told)};
            std::byte* const at = into.data() + filled.bytes;
            std::memcpy(at, &record, sizeof record);
            if (!made.empty()) std::memcpy(at + sizeof record, made.data(), made.size());
            filled.bytes += log_record_bytes(made.size());
            ++filled.passed;
            ++counts_.passed;
            filled.last_end = filled.next + 1;
        }
        ++counts_.looked;
        counts_.bytes_kept += item.size() - std::min(item.size(), passes ? made.size() : 0);
        ++filled.next;
        run = run.subspan(taken);
    }
    const LogChosenHead head{filled.next, counts_.threw};
    std::memcpy(into.data(), &head, sizeof head);
    return filled;
}

}  // namespace millrace::flow::detail
