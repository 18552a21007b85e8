// Prices for a program that looks at them slowly: while it does, only the newest of each waits.
//     prices show unix:/tmp/p &  prices feed unix:/tmp/p
#include <millrace/flow/conflating.hpp>
#include <millrace/flow/consumer.hpp>

#include <cstdio>
#include <map>
#include <string_view>
#include <thread>

using namespace millrace;

struct Price {
    unsigned instrument, tick, cents;
};

int main(int, char** given) try {
    const auto soon = base::Deadline::after(std::chrono::seconds{20});
    const flow::Options few{.ring = {.capacity = 16}};  // what lies in the queue is not replaced
    if (std::string_view{given[1]} == "show") {
        auto prices = flow::Consumer<Price>::listen(given[2], few, soon);
        std::map<unsigned, Price> newest;
        for (Price price; prices.dequeue(price, soon) == base::Status::ok;) {
            newest[price.instrument] = price;
            std::this_thread::sleep_for(std::chrono::microseconds{100});
        }
        for (const auto& [instrument, last] : newest)
            std::printf("%u: %u cents at %u\n", instrument, last.cents, last.tick);
        return 0;
    }
    auto queue = flow::Producer<Price>::connect(given[2], few, soon);
    flow::ConflatingProducer prices{
        std::move(queue), &Price::instrument, {.keys = 5}};  // never full
    for (unsigned tick = 1; tick <= 100'000; ++tick)
        if (prices.try_enqueue({tick % 5, tick, tick % 997}) != base::Status::ok) return 1;
    return prices.close(soon) == base::Status::ok && prices.stats().sent < 100'000 ? 0 : 1;
} catch (const base::Error& error) {
    std::fprintf(stderr, "prices: %s\n", error.what());
    return 1;
}
