// Which record an operation is about: the distributions of the Yahoo! Cloud Serving Benchmark, by
// their published definitions. Called by workload.hpp, which has the records, and by what asks for
// fields of them.
//
// Sources: Cooper et al., Benchmarking Cloud Serving Systems with YCSB (SoCC 2010), section 4.1;
// Gray et al., Quickly Generating Billion-Record Synthetic Databases (SIGMOD 1994), for Zipf's law;
// parameters and the scrambling hash as YCSB's own program has them.
//
// Each belongs to one thread. Nothing allocates once it is made.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string_view>
#include <variant>

namespace millrace::workload {

using Random = std::mt19937_64;

/// From 0 to 1, which it is not itself.
[[nodiscard]] inline double part_of_one(Random& random) noexcept {
    return static_cast<double>(random() >> 11) * 0x1p-53;
}
/// From 0 to `end`, which it is not itself.
[[nodiscard]] inline std::uint64_t number_below(std::uint64_t end, Random& random) noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(Wide{random()} * end >> 64);
}

/// FNV-1a of the number's eight bytes, the lowest first, without a sign: which item a rank is of,
/// and what a key is called.
[[nodiscard]] std::uint64_t scrambled(std::uint64_t number) noexcept;

/// Ranks from 0 on by Zipf's law, as Gray et al. draw them: the first two with their exact
/// probabilities, the others by an approximation that one power computes.
class ZipfianRanks {
  public:
    static constexpr double usual_theta = 0.99;

    /// Takes as many powers as there are items, 1 or more.
    explicit ZipfianRanks(std::uint64_t items, double theta = usual_theta);
    /// `zeta`: the sum of 1/i^theta for i from 1 to `items`, for those of whom there are too many
    /// to add up.
    ZipfianRanks(std::uint64_t items, double theta, double zeta) noexcept;

    /// From now on there are so many; fewer than before are none too many.
    void grow(std::uint64_t items) noexcept;
    [[nodiscard]] std::uint64_t next(Random& random) const noexcept;

  private:
    void set_eta() noexcept;

    double theta_;
    double of_two_;  ///< the sum for two items
    double zeta_;    ///< the sum for all
    double eta_ = 0;
    std::uint64_t items_;
};

enum class Distribution : std::uint8_t { zipfian, latest, uniform, exponential, hotspot };
[[nodiscard]] std::string_view name_of(Distribution distribution) noexcept;
/// None: it is the name of none.
[[nodiscard]] std::optional<Distribution> parse_distribution(std::string_view name) noexcept;

/// Zipf's law whose favourites lie anywhere. Ranks are drawn among as many items as YCSB has, so
/// that what is read most has the same part whatever there is of records.
class ScrambledZipfian {
  public:
    static constexpr std::uint64_t ranks = 10'000'000'000;
    /// Of so many ranks, by ZipfianRanks::usual_theta.
    static constexpr double zeta_of_ranks = 26.46902820178302;

    explicit ScrambledZipfian(std::uint64_t records) noexcept : records_{records} {}
    [[nodiscard]] std::uint64_t next(Random& random) const noexcept {
        return scrambled(ranks_.next(random)) % records_;
    }

  private:
    ZipfianRanks ranks_{ranks, ZipfianRanks::usual_theta, zeta_of_ranks};
    std::uint64_t records_;
};

/// A part of the records, the first ones, gets most of the operations.
class Hotspot {
  public:
    static constexpr double hot_part = 0.2;        ///< of the records
    static constexpr double hot_operations = 0.8;  ///< of the operations

    explicit Hotspot(std::uint64_t records) noexcept;
    [[nodiscard]] std::uint64_t next(Random& random) const noexcept;

  private:
    std::uint64_t hot_;
    std::uint64_t records_;
};

/// How far back from the newest record: the nearer, the likelier.
class Exponential {
  public:
    /// So many of the operations reach no further than this part of the records goes.
    static constexpr double within = 0.95;
    static constexpr double part = 0.8571428571;  ///< 6/7, as YCSB's program has it

    explicit Exponential(std::uint64_t records) noexcept;
    [[nodiscard]] std::uint64_t next(Random& random) const noexcept;

  private:
    double mean_;
};

/// A record's number, by any of the distributions.
class RecordChooser {
  public:
    /// `loaded`: records that are there before anything is chosen, 1 or more. `expected`: those
    /// that may come, for distributions that say of each record from the beginning how often it is
    /// chosen.
    RecordChooser(Distribution distribution, std::uint64_t loaded, std::uint64_t expected);
    /// Of those from 0 to `last`, which is at least what was loaded and never less than before.
    [[nodiscard]] std::uint64_t next(std::uint64_t last, Random& random);

  private:
    struct Latest {
        ZipfianRanks back;
    };
    struct Uniform {
        std::uint64_t records;
    };
    using Kind = std::variant<ScrambledZipfian, Latest, Uniform, Exponential, Hotspot>;
    [[nodiscard]] static Kind kind_of(Distribution distribution, std::uint64_t loaded,
                                      std::uint64_t expected);
    Kind kind_;
};

}  // namespace millrace::workload
