// A program that has an epoll loop of its own, with a timer and a TCP socket, gets a queue as well.
//     epoll_loop unix:/run/numbers 7001    prints a sum every 100 ms, and to whoever connects to
//     TCP
//                                          port 7001; ends when the producer has closed
//     epoll_loop unix:/run/numbers         sends the numbers 1 to 1,000
#include <millrace/flow/consumer.hpp>
#include <millrace/flow/producer.hpp>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

using namespace millrace;

static void watch(int epoll, int descriptor) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) std::exit(1);
}

static int serve(const char* address, int port) {
    const auto soon = base::Deadline::after(std::chrono::seconds{10});
    auto queue = flow::Consumer<int>::listen(address, {}, soon);
    const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    const itimerspec period{{0, 100'000'000}, {0, 100'000'000}};
    timerfd_settime(timer, 0, &period, nullptr);
    const int tcp = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(static_cast<std::uint16_t>(port));
    if (bind(tcp, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 || listen(tcp, 8) != 0)
        return 1;
    const int epoll = epoll_create1(0);
    for (const int descriptor : {queue.descriptor(), timer, tcp}) watch(epoll, descriptor);
    for (long sum = 0;;) {
        epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) != 1) continue;
        if (event.data.fd == queue.descriptor()) {
            int number;
            base::Status status;
            while ((status = queue.try_dequeue(number)) == base::Status::ok) sum += number;
            if (status == base::Status::empty) continue;
            std::printf("in the end %ld\n", sum);
            return status == base::Status::closed ? 0 : 1;
        }
        std::uint64_t times;
        if (event.data.fd == timer && read(timer, &times, sizeof times) > 0)
            std::printf("%ld\n", sum);
        if (event.data.fd == tcp) {
            const int client = accept(tcp, nullptr, nullptr);
            dprintf(client, "%ld\n", sum);
            close(client);
        }
    }
}

int main(int argc, char** argv) try {
    if (argc == 3) return serve(argv[1], std::atoi(argv[2]));
    if (argc != 2) return 2;
    const auto soon = base::Deadline::after(std::chrono::seconds{10});
    auto queue = flow::Producer<int>::connect(argv[1], {}, soon);
    for (int i = 1; i <= 1000; ++i) {
        if (queue.enqueue(i, soon) != base::Status::ok) return 1;
    }
    return queue.close(soon) == base::Status::ok ? 0 : 1;
} catch (const base::Error& error) {
    std::fprintf(stderr, "epoll_loop: %s\n", error.what());
    return 1;
}
