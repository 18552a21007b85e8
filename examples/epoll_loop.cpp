// A program with an epoll loop of its own, a timer and a TCP socket gets a queue as well:
//     epoll_loop unix:/tmp/a 7001 &  pipeline unix:/tmp/a -
// The sum of the queue's numbers is printed every 100 ms, and told to whoever connects to the port.
#include <millrace/flow/consumer.hpp>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int, char** argv) try {
    using namespace millrace;
    auto queue = flow::Consumer<long>::listen(argv[1], {}, base::Deadline::never());
    const int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    const itimerspec period{{0, 100'000'000}, {0, 100'000'000}};
    timerfd_settime(timer, 0, &period, nullptr);
    const int tcp = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in any{AF_INET, htons(static_cast<in_port_t>(std::atoi(argv[2]))), {}, {}};
    if (bind(tcp, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) return 1;
    listen(tcp, 8);
    const int epoll = epoll_create1(0);
    epoll_event event{};
    for (const int descriptor : {queue.descriptor(), timer, tcp}) {
        event = {.events = EPOLLIN, .data = {.fd = descriptor}};
        epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
    }
    long sum = 0, number = 0;
    for (auto status = base::Status::ok; status != base::Status::closed;) {
        epoll_wait(epoll, &event, 1, -1);
        if (event.data.fd == queue.descriptor()) {
            while ((status = queue.try_dequeue(number)) == base::Status::ok) sum += number;
        } else if (event.data.fd == timer) {
            if (read(timer, &number, sizeof number) > 0) std::printf("%ld\n", sum);
        } else if (const int client = accept(tcp, nullptr, nullptr); client >= 0) {
            dprintf(client, "%ld\n", sum);
            close(client);
        }
    }
    std::printf("in the end %ld\n", sum);
} catch (const millrace::base::Error& error) {
    std::fprintf(stderr, "epoll_loop: %s\n", error.what());
    return 1;
}
