// Asks an rpc_server for the primes between two numbers, by one typed call.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <millrace/rpc/client.hpp>

#include "rpc_procedures.hpp"

int main(int argc, char** argv) try {
    if (argc != 4) return 2;
    const auto deadline = millrace::base::Deadline::after(std::chrono::seconds{20});
    auto client = millrace::rpc::Client::connect<CountPrimes>(argv[1], {}, deadline);
    const Interval asked{std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10)};
    const auto primes = client.call<CountPrimes>(asked, deadline);
    if (!primes) {
        std::fprintf(stderr, "%s\n", primes.error().text.c_str());
        return 1;
    }
    std::printf("%llu primes, the largest is %llu\n",
                static_cast<unsigned long long>(primes->count),
                static_cast<unsigned long long>(primes->largest));
    (void)client.close(deadline);
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
