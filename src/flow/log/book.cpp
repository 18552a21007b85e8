// A log's book of acknowledgements, see the header.
#include "log/book.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "millrace/base/log.hpp"

namespace millrace::flow::detail {
namespace {

struct BookHead {
    std::array<char, 8> magic{'M', 'R', 'L', 'O', 'G', 'B', 'O', 'K'};
    std::uint64_t sequence = 0;
    std::uint64_t consumers = 0;  ///< how many there are
    std::uint64_t checksum = 0;

    [[nodiscard]] std::uint64_t own_checksum() const noexcept {
        return XXH3_64bits(this, offsetof(BookHead, checksum));
    }
};
static_assert(sizeof(BookHead) == 32);

struct Place {
    std::uint64_t position = 0;
    std::uint64_t version = 0;  ///< 0: never written
    std::uint64_t name_length = 0;
    char name[longest_log_name] = {};
    std::uint64_t checksum = 0;

    [[nodiscard]] std::uint64_t own_checksum() const noexcept {
        return XXH3_64bits(this, offsetof(Place, checksum));
    }
    [[nodiscard]] bool is_whole() const noexcept {
        return version != 0 && name_length != 0 && name_length <= longest_log_name &&
               checksum == own_checksum();
    }
};
static_assert(sizeof(Place) == 96);

constexpr std::size_t book_bytes = sizeof(BookHead) + LogBook::most_consumers * 2 * sizeof(Place);

std::byte* place_in(const LogMapping& file, std::size_t consumer, std::uint64_t version) noexcept {
    return file.data() + sizeof(BookHead) + (2 * consumer + version % 2) * sizeof(Place);
}

void write_head(const LogMapping& file, std::uint64_t sequence, std::uint64_t consumers) noexcept {
    BookHead head;
    head.sequence = sequence;
    head.consumers = consumers;
    head.checksum = head.own_checksum();
    std::memcpy(file.data(), &head, sizeof head);
}

}  // namespace

LogBook::LogBook(const std::string& path, std::uint64_t sequence, std::uint64_t end)
    : path_{path}, file_{LogMapping::file(path, book_bytes)} {
    read(sequence, end);
}

void LogBook::read(std::uint64_t sequence, std::uint64_t end) {
    BookHead head;
    std::memcpy(&head, file_.data(), sizeof head);
    const bool is_head = head.checksum == head.own_checksum() && head.magic == BookHead{}.magic;
    if (is_head && head.sequence != sequence) {
        std::memset(file_.data(), 0, book_bytes);  // of a log that was here before
    }
    std::uint64_t consumers = 0;
    for (std::size_t at = 0; at != most_consumers; ++at) {
        Entry entry;
        for (std::uint64_t parity = 0; parity != 2; ++parity) {
            Place place;
            std::memcpy(&place, place_in(file_, at, parity), sizeof place);
            if (!place.is_whole() || place.version <= entry.version) continue;
            entry = {std::string{place.name, place.name_length}, place.position, place.version};
        }
        if (entry.position > end) {
            base::log(base::LogLevel::warn, "flow",
                      "{}: '{}' has acknowledged {}, and the log has items up to {} alone", path_,
                      entry.name, entry.position, end);
            entry.position = end;
        }
        if (!entry.name.empty()) ++consumers;
        entries_.push_back(std::move(entry));
    }
    while (!entries_.empty() && entries_.back().name.empty()) entries_.pop_back();
    if (is_head && head.sequence == sequence && consumers < head.consumers) {
        base::log(base::LogLevel::warn, "flow",
                  "{} is cut: what {} of {} consumers have acknowledged is lost", path_,
                  head.consumers - consumers, head.consumers);
    }
    write_head(file_, sequence, consumers);
}

std::optional<std::size_t> LogBook::find(std::string_view name) const noexcept {
    for (std::size_t at = 0; at != entries_.size(); ++at) {
        if (entries_[at].name == name) return at;
    }
    return std::nullopt;
}

std::optional<std::uint64_t> LogBook::acknowledged(std::string_view name) const noexcept {
    const auto at = find(name);
    if (!at.has_value()) return std::nullopt;
    return entries_[*at].position;
}

bool LogBook::note(std::string_view name, std::uint64_t position) {
    std::optional<std::size_t> at = find(name);
    const bool is_new = !at.has_value();
    if (is_new) {
        at = find({});
        if (!at.has_value()) {
            if (entries_.size() == most_consumers) return false;
            at = entries_.size();
            entries_.emplace_back();
        }
        entries_[*at].name = name;
    }
    entries_[*at].position = position;
    ++entries_[*at].version;
    write(*at);
    if (is_new && file_.data() != nullptr) {
        BookHead head;
        std::memcpy(&head, file_.data(), sizeof head);
        write_head(file_, head.sequence, head.consumers + 1);
    }
    return true;
}

void LogBook::write(std::size_t at) noexcept {
    if (file_.data() == nullptr) return;
    const Entry& entry = entries_[at];
    Place place;
    place.position = entry.position;
    place.version = entry.version;
    place.name_length = entry.name.size();
    entry.name.copy(place.name, sizeof place.name);
    std::byte* const to = place_in(file_, at, entry.version);
    std::memcpy(to, &place, offsetof(Place, checksum));
    auto& checksum = *reinterpret_cast<std::uint64_t*>(to + offsetof(Place, checksum));
    std::atomic_ref<std::uint64_t>{checksum}.store(place.own_checksum(), std::memory_order_release);
}

void LogBook::forget(std::string_view name) noexcept {
    const auto at = name.empty() ? std::nullopt : find(name);
    if (!at.has_value()) return;
    if (file_.data() != nullptr) {
        std::memset(place_in(file_, *at, 0), 0, 2 * sizeof(Place));
        BookHead head;
        std::memcpy(&head, file_.data(), sizeof head);
        write_head(file_, head.sequence, head.consumers - 1);
    }
    entries_[*at] = {};
}

std::uint64_t LogBook::least_of(const std::vector<std::string>& names) const noexcept {
    std::uint64_t least = ~std::uint64_t{0};
    for (const std::string& name : names) least = std::min(least, acknowledged(name).value_or(0));
    return least;
}

}  // namespace millrace::flow::detail
