// Random schedules of protocols without I/O: how many are played, and how one is played again.
// Called by tests that have a judge of their own.
//
// MILLRACE_TEST_ROUNDS: how many (with MILLRACE_TEST_LONG more by default).
// MILLRACE_TEST_SEED: of the first (default 1; with MILLRACE_TEST_LONG random); named by a failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "support/settings.hpp"

namespace millrace::test {

/// `play(seed)` answers what went wrong, or an empty string. How many were played; 0: one failed,
/// and the test with it.
template <class Play>
std::uint64_t play_schedules(std::uint64_t rounds, std::uint64_t long_rounds, Play&& play) {
    const bool lengthy = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    rounds = number_from("MILLRACE_TEST_ROUNDS", lengthy ? long_rounds : rounds);
    const std::uint64_t first =
        number_from("MILLRACE_TEST_SEED", lengthy ? std::random_device{}() : 1);
    for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
        const std::string failure = play(seed);
        if (failure.empty()) continue;
        ADD_FAILURE() << failure << "\nonce more: MILLRACE_TEST_SEED=" << seed
                      << " MILLRACE_TEST_ROUNDS=1";
        return 0;
    }
    return rounds;
}

}  // namespace millrace::test
