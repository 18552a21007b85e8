// A queue in an epoll loop beside a timer and a TCP port, both of which ask for its sum.
//     epoll_loop unix:/tmp/a 7001 &  pipeline unix:/tmp/a -
#include <millrace/flow/consumer.hpp>

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <cstdio>

#include "tcp_port.hpp"

int main(int, char** argv) try {
    using namespace millrace;
    auto queue = flow::Consumer<long>::listen(argv[1], {}, base::Deadline::never());
    const int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    const itimerspec period{{0, 100'000'000}, {0, 100'000'000}};
    timerfd_settime(timer, 0, &period, nullptr);
    const int tcp = listen_at(argv[2]), epoll = epoll_create1(0);
    epoll_event event{};
    for (const int descriptor : {queue.descriptor(), timer, tcp}) {
        event = {.events = EPOLLIN, .data = {.fd = descriptor}};
        epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
    }
    long sum = 0, number = 0;
    auto status = base::Status::empty;
    while (status == base::Status::empty) {  // until it is closed, or its producer lost
        epoll_wait(epoll, &event, 1, -1);
        if (event.data.fd == queue.descriptor()) {
            while ((status = queue.try_dequeue(number)) == base::Status::ok) sum += number;
        } else if (event.data.fd == timer) {
            if (read(timer, &number, sizeof number) > 0) std::printf("%ld\n", sum);
        } else {
            tell_next(tcp, sum);
        }
    }
    std::printf("in the end %ld, %s\n", sum, name_of(status).data());
    return status != base::Status::closed;
} catch (const std::exception& error) {
    return std::fprintf(stderr, "epoll_loop: %s\n", error.what()), 1;
}
