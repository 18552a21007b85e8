#include "generators.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace millrace::workload {
namespace {

constexpr std::array<std::pair<std::string_view, Distribution>, 5> distribution_names{
    {{"zipfian", Distribution::zipfian},
     {"latest", Distribution::latest},
     {"uniform", Distribution::uniform},
     {"exponential", Distribution::exponential},
     {"hotspot", Distribution::hotspot}}};

/// The sum of 1/i^theta for i from `first` to `last`.
double part_of_zeta(std::uint64_t first, std::uint64_t last, double theta) noexcept {
    double sum = 0;
    for (std::uint64_t i = first; i <= last; ++i) sum += std::pow(static_cast<double>(i), -theta);
    return sum;
}

}  // namespace

std::string_view name_of(Distribution distribution) noexcept {
    for (const auto& [name, one] : distribution_names) {
        if (one == distribution) return name;
    }
    return "unknown";
}

std::optional<Distribution> parse_distribution(std::string_view name) noexcept {
    for (const auto& [known, one] : distribution_names) {
        if (known == name) return one;
    }
    return std::nullopt;
}

std::uint64_t scrambled(std::uint64_t number) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (unsigned byte = 0; byte != 8; ++byte) {
        hash = (hash ^ (number >> (8 * byte) & 0xff)) * 0x100000001b3;
    }
    return hash >> 63 != 0 ? ~hash + 1 : hash;
}

ZipfianRanks::ZipfianRanks(std::uint64_t items, double theta)
    : ZipfianRanks{items, theta, part_of_zeta(1, items, theta)} {}

ZipfianRanks::ZipfianRanks(std::uint64_t items, double theta, double zeta) noexcept
    : theta_{theta}, of_two_{1 + std::pow(0.5, theta)}, zeta_{zeta}, items_{items} {
    set_eta();
}

void ZipfianRanks::grow(std::uint64_t items) noexcept {
    if (items <= items_) return;
    zeta_ += part_of_zeta(items_ + 1, items, theta_);
    items_ = items;
    set_eta();
}

void ZipfianRanks::set_eta() noexcept {
    if (items_ <= 2) return;  // there it is not needed, nor a number
    eta_ = (1 - std::pow(2.0 / static_cast<double>(items_), 1 - theta_)) / (1 - of_two_ / zeta_);
}

std::uint64_t ZipfianRanks::next(Random& random) const noexcept {
    const double part = part_of_one(random);
    const double place = part * zeta_;
    if (place < 1 || items_ == 1) return 0;
    if (place < of_two_ || items_ == 2) return 1;
    const double rank =
        static_cast<double>(items_) * std::pow(eta_ * part - eta_ + 1, 1 / (1 - theta_));
    // What is rounded may be one too many.
    return std::min(static_cast<std::uint64_t>(rank), items_ - 1);
}

Hotspot::Hotspot(std::uint64_t records) noexcept
    : hot_{static_cast<std::uint64_t>(static_cast<double>(records) * hot_part)},
      records_{records} {}

std::uint64_t Hotspot::next(Random& random) const noexcept {
    if (part_of_one(random) < hot_operations && hot_ != 0) return number_below(hot_, random);
    return hot_ + number_below(records_ - hot_, random);
}

Exponential::Exponential(std::uint64_t records) noexcept
    : mean_{static_cast<double>(records) * part / -std::log1p(-within)} {}

std::uint64_t Exponential::next(Random& random) const noexcept {
    return static_cast<std::uint64_t>(-std::log1p(-part_of_one(random)) * mean_);
}

RecordChooser::Kind RecordChooser::kind_of(Distribution distribution, std::uint64_t loaded,
                                           std::uint64_t expected) {
    switch (distribution) {
        case Distribution::zipfian: break;
        case Distribution::latest: return Latest{ZipfianRanks{loaded}};
        case Distribution::uniform: return Uniform{loaded};
        case Distribution::exponential: return Exponential{loaded};
        case Distribution::hotspot: return Hotspot{loaded};
    }
    return ScrambledZipfian{loaded + expected};
}

RecordChooser::RecordChooser(Distribution distribution, std::uint64_t loaded,
                             std::uint64_t expected)
    : kind_{kind_of(distribution, loaded, expected)} {}

std::uint64_t RecordChooser::next(std::uint64_t last, Random& random) {
    if (auto* const latest = std::get_if<Latest>(&kind_)) {
        latest->back.grow(last + 1);
        return last - latest->back.next(random);
    }
    if (const auto* const uniform = std::get_if<Uniform>(&kind_)) {
        return number_below(uniform->records, random);
    }
    if (const auto* const hotspot = std::get_if<Hotspot>(&kind_)) return hotspot->next(random);
    if (const auto* const exponential = std::get_if<Exponential>(&kind_)) {
        for (;;) {
            const std::uint64_t back = exponential->next(random);
            if (back <= last) return last - back;
        }
    }
    const auto& zipfian = std::get<ScrambledZipfian>(kind_);
    for (;;) {
        // Of records that may come, those that have not are passed over.
        const std::uint64_t record = zipfian.next(random);
        if (record <= last) return record;
    }
}

}  // namespace millrace::workload
