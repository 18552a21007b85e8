// The command that repeats the evaluation of work 002, chapter 4: `millrace bench kv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/kv/store.hpp"
#include "studies/framework/study.hpp"

namespace millrace::bench {

struct KvStudyOptions {
    /// Of all requests; the work says 95, and its program, by `rand() % 100 <= 5`, made 94.
    unsigned get_percent = 95;
    /// A server thread for each client, as the work's server has, in place of one for all.
    bool threads = false;
    /// None: the work's where each client has a thread, else this library's own.
    std::optional<kv::TableKind> table{};
    /// Clients of a figure, ascending; the work had 1 to 70, and 32 processors for them.
    std::vector<std::size_t> crowds{1, 2, 4, 8, 16, 32, 48, 60, 70};
    /// Those whose latencies are shown one by one.
    std::vector<std::size_t> shown{5, 32, 60};
    /// Of a run, all clients together, in place of a time (the work: 10 million); 0: by time.
    std::uint64_t operations = 0;
    std::string save{};  ///< folder for a CSV file of each run, with every operation; empty: none

    [[nodiscard]] kv::TableKind chosen_table() const {
        return table.value_or(threads ? kv::TableKind::thesis : kv::TableKind::cuckoo);
    }
};

/// Most clients of a figure: as many as a server has threads at most.
inline constexpr std::size_t most_clients_of_figure = 256;

/// Its figures 4.1 to 4.8 and tables 4.1 to 4.3, and what it says about them.
[[nodiscard]] Study kv_study(const KvStudyOptions& chosen);

/// As run_study; throws Error for what is out of range, or a folder that cannot be made.
int run_kv(const StudyOptions& options, const KvStudyOptions& chosen);

}  // namespace millrace::bench
