// Serves one typed procedure until it has answered as many calls as asked.
//
//     rpc_server ADDRESS COUNT
//     rpc_client ADDRESS FIRST LAST
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <millrace/rpc/server.hpp>

#include "rpc_procedures.hpp"

static bool is_prime(std::uint64_t number) {
    for (std::uint64_t factor = 2; factor * factor <= number; ++factor) {
        if (number % factor == 0) return false;
    }
    return number > 1;
}

int main(int argc, char** argv) try {
    if (argc != 3) return 2;
    auto server = millrace::rpc::Server::listen(argv[1]);
    long left = std::atol(argv[2]);
    server.handle<CountPrimes>([&](const Interval& asked) -> millrace::rpc::Result<Primes> {
        if (--left == 0) server.stop();
        if (asked.last > 1'000'000) return millrace::rpc::Error{.text = "that takes too long"};
        Primes primes;
        for (std::uint64_t number = asked.first; number <= asked.last; ++number) {
            if (is_prime(number)) primes = {primes.count + 1, number};
        }
        return primes;
    });
    (void)server.serve(millrace::base::Deadline::never());
    // Every answer is on its way to its client before this returns.
    (void)server.close(millrace::base::Deadline::after(std::chrono::seconds{5}));
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
