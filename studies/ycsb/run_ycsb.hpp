// `millrace bench ycsb`: the Yahoo! Cloud Serving Benchmark by this library's own protocol, by
// Redis' and by memcached's, and the evaluation of work 001, chapter 5, which uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "studies/framework/study.hpp"
#include "workload/ycsb/generators.hpp"

namespace millrace::bench {

struct YcsbOptions {
    std::vector<char> workloads{};    ///< 'A' to 'F'; empty: all, and the work's figures
    std::vector<std::string> over{};  ///< as ycsb_ways are called; empty: all
    std::string server{};             ///< its address; empty: each has one that is started for it
    std::vector<std::size_t> clients{};  ///< empty: 1 and 16; at a rate, 16
    std::vector<std::size_t> rates{};  ///< operations a second of all clients; empty: closed loops
    std::optional<workload::Distribution> distribution{};  ///< none: each workload's
    std::uint64_t records = 10'000;
    std::size_t fields = 10;
    std::size_t field_bytes = 100;
    double seconds = 1;  ///< of each run, after a quarter of that to warm up
    bool loads = true;   ///< false: the records are there
};

/// Throws Error (invalid_argument): options that exclude each other; not_found: a program that was
/// asked for by name is not installed. Those that were not are left out, and standard error says
/// so.
[[nodiscard]] Study ycsb_study(const YcsbOptions& options, bool quick);
/// As run_study.
int run_ycsb(const YcsbOptions& options, const StudyOptions& study);

}  // namespace millrace::bench
