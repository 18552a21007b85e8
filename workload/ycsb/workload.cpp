#include "workload.hpp"

#include <charconv>
#include <cstring>

namespace millrace::workload {
namespace {

/// What a field begins with.
std::uint64_t mark_of(std::uint64_t record, std::size_t field) noexcept {
    return scrambled(record) ^ (std::uint64_t{field} + 1) << 56;
}

}  // namespace

std::string_view name_of(YcsbOperation operation) noexcept {
    switch (operation) {
        case YcsbOperation::read: return "read";
        case YcsbOperation::update: return "update";
        case YcsbOperation::insert: return "insert";
        case YcsbOperation::scan: return "scan";
        case YcsbOperation::read_modify_write: return "read-modify-write";
    }
    return "unknown";
}

YcsbOperation YcsbWorkload::next(Random& random) const noexcept {
    std::uint64_t place = number_below(100, random);
    for (const YcsbOperation operation : every_ycsb_operation) {
        const unsigned part = percent_of(operation);
        if (place < part) return operation;
        place -= part;
    }
    return YcsbOperation::read;
}

void write_key(std::uint64_t record, std::string& key) {
    std::array<char, 20> digits;
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), scrambled(record)).ptr;
    key.assign("user");
    key.append(digits.data(), end);
}

void RecordFormat::fill(std::uint64_t record, std::span<std::byte> value,
                        Random& random) const noexcept {
    for (std::size_t field = 0; field != fields_; ++field) {
        fill_field(record, field, value, random);
    }
}

void RecordFormat::fill_field(std::uint64_t record, std::size_t field, std::span<std::byte> value,
                              Random& random) const noexcept {
    std::span<std::byte> rest = value.subspan(field * field_bytes_, field_bytes_);
    std::uint64_t word = mark_of(record, field);
    for (;;) {
        const std::size_t part = std::min(rest.size(), sizeof word);
        std::memcpy(rest.data(), &word, part);
        rest = rest.subspan(part);
        if (rest.empty()) return;
        word = random();
    }
}

bool RecordFormat::is_of(std::uint64_t record, std::span<const std::byte> value) const noexcept {
    if (value.size() != size()) return false;
    for (std::size_t field = 0; field != fields_; ++field) {
        const std::uint64_t mark = mark_of(record, field);
        if (std::memcmp(value.data() + field * field_bytes_, &mark, sizeof mark) != 0) return false;
    }
    return true;
}

void InsertedRecords::acknowledge(std::uint64_t record) {
    const std::lock_guard guard{lock_};
    early_.insert(record);
    std::uint64_t last = last_.load();
    while (early_.erase(last + 1) != 0) ++last;
    last_.store(last);
}

}  // namespace millrace::workload
