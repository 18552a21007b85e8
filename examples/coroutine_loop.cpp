// The job of epoll_loop.cpp by coroutines, one for each thing that is waited for.
//     coroutine_loop unix:/tmp/a 7001 &  pipeline unix:/tmp/a -
#include <millrace/connect/hub.hpp>
#include <millrace/flow/consumer.hpp>
#include <millrace/flow/coroutine.hpp>

#include <cstdio>

#include "tcp_port.hpp"

using namespace millrace;

static base::Task<> add_up(flow::Consumer<long>& queue, long& sum, connect::Hub& hub) {
    const auto never = base::Deadline::never();
    for (long number; co_await dequeue(queue, number, never) == base::Status::ok;) sum += number;
    hub.stop();
}
static base::Task<> print(const long& sum) {
    for (;; std::printf("%ld\n", sum)) co_await base::sleep_for(std::chrono::milliseconds{100});
}
static base::Task<> tell(int tcp, const long& sum) {
    for (;; tell_next(tcp, sum)) co_await base::readable(tcp, base::Deadline::never());
}

int main(int, char** argv) try {
    auto queue = flow::Consumer<long>::listen(argv[1], {}, base::Deadline::never());
    const int tcp = listen_at(argv[2]);
    long sum = 0;
    connect::Hub hub;
    base::spawn(hub, add_up(queue, sum, hub));
    base::spawn(hub, print(sum));
    base::spawn(hub, tell(tcp, sum));
    (void)hub.run();
    const auto status = queue.try_dequeue(sum);  // closed, or its producer lost: as it ended
    std::printf("in the end %ld, %s\n", sum, name_of(status).data());
    return status != base::Status::closed;
} catch (const std::exception& error) {
    std::fprintf(stderr, "coroutine_loop: %s\n", error.what());
    return 1;
}
