// What rpc_server and rpc_client both know.
#pragma once

#include <cstdint>
#include <string_view>

struct Interval {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
};
struct Primes {
    std::uint64_t count = 0;
    std::uint64_t largest = 0;
};

struct CountPrimes {
    static constexpr std::string_view name = "count primes";
    using Request = Interval;
    using Response = Primes;
    static constexpr bool is_idempotent = true;
};
