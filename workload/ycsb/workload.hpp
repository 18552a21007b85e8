// What clients of a store do in the Yahoo! Cloud Serving Benchmark: its core workloads A to F, its
// keys, and its records. Knows no store; connections.hpp has those. Called by measure_ycsb.hpp.
//
// Source: Cooper et al., Benchmarking Cloud Serving Systems with YCSB (SoCC 2010), table 2; F and
// the names of keys as YCSB's own program has them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "generators.hpp"

namespace millrace::workload {

enum class YcsbOperation : std::uint8_t { read, update, insert, scan, read_modify_write };
inline constexpr std::array every_ycsb_operation{YcsbOperation::read, YcsbOperation::update,
                                                 YcsbOperation::insert, YcsbOperation::scan,
                                                 YcsbOperation::read_modify_write};
/// "read", …, "read-modify-write".
[[nodiscard]] std::string_view name_of(YcsbOperation operation) noexcept;

struct YcsbWorkload {
    char name;
    std::string_view title;
    std::array<unsigned, every_ycsb_operation.size()> percent;  ///< by YcsbOperation
    Distribution distribution;

    [[nodiscard]] unsigned percent_of(YcsbOperation operation) const noexcept {
        return percent[static_cast<std::size_t>(operation)];
    }
    [[nodiscard]] YcsbOperation next(Random& random) const noexcept;
};
inline constexpr std::array<YcsbWorkload, 6> ycsb_workloads{{
    {'A', "half reads, half updates", {50, 50, 0, 0, 0}, Distribution::zipfian},
    {'B', "95 % reads, 5 % updates", {95, 5, 0, 0, 0}, Distribution::zipfian},
    {'C', "reads alone", {100, 0, 0, 0, 0}, Distribution::zipfian},
    {'D', "95 % reads of the latest, 5 % inserts", {95, 0, 5, 0, 0}, Distribution::latest},
    {'E', "95 % scans, 5 % inserts", {0, 0, 5, 95, 0}, Distribution::zipfian},
    {'F', "half reads, half read-modify-writes", {50, 0, 0, 0, 50}, Distribution::zipfian},
}};

/// Records of a scan: 1 to so many, each as likely.
inline constexpr std::uint64_t longest_scan = 100;

/// "user" and the record's number, scrambled: records that were inserted one after the other are
/// anywhere in the order of keys.
void write_key(std::uint64_t record, std::string& key);

/// The value of a record: its fields, one after the other. The first eight bytes of a field say of
/// which record and which one it is, the others are random.
class RecordFormat {
  public:
    static constexpr std::size_t least_field_bytes = 8;

    RecordFormat(std::size_t fields, std::size_t field_bytes) noexcept
        : fields_{fields}, field_bytes_{field_bytes} {}
    [[nodiscard]] std::size_t size() const noexcept { return fields_ * field_bytes_; }
    [[nodiscard]] std::size_t fields() const noexcept { return fields_; }
    /// `value` has size() bytes.
    void fill(std::uint64_t record, std::span<std::byte> value, Random& random) const noexcept;
    /// One field anew, as an update that changes what it has read.
    void fill_field(std::uint64_t record, std::size_t field, std::span<std::byte> value,
                    Random& random) const noexcept;
    [[nodiscard]] bool is_of(std::uint64_t record, std::span<const std::byte> value) const noexcept;

  private:
    std::size_t fields_;
    std::size_t field_bytes_;
};

/// Numbers for records that clients insert side by side, and up to which all are there. Any number
/// of threads.
class InsertedRecords {
  public:
    /// So many are there, 1 or more.
    explicit InsertedRecords(std::uint64_t loaded) : next_{loaded}, last_{loaded - 1} {}
    /// The next one's number.
    [[nodiscard]] std::uint64_t take() noexcept { return next_.fetch_add(1); }
    /// What was taken is there, or never will be.
    void acknowledge(std::uint64_t record);
    /// This one and all before it are there.
    [[nodiscard]] std::uint64_t last() const noexcept { return last_.load(); }

  private:
    std::atomic<std::uint64_t> next_;
    std::atomic<std::uint64_t> last_;  ///< written under lock_
    std::mutex lock_;
    std::set<std::uint64_t> early_;  ///< acknowledged before one that has a lower number
};

}  // namespace millrace::workload
