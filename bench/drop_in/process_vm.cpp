// The yardstick of the drop-in's latency: two processes that throw a few bytes at each other with
// process_vm_writev, waiting by looking at their own memory, as ib_write_lat does it. No verbs.
// Called by compare.py.
//
// Usage: process_vm BYTES ITERATIONS CORE_A CORE_B
// Prints: one way (median, microseconds) and the median time of the call alone.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Side {
    std::atomic<pid_t> pid{0};
    std::atomic<char*> buffer{nullptr};
};
struct Shared {
    Side sides[2];
};

void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        std::perror("sched_setaffinity");
        std::exit(1);
    }
}

double microseconds(Clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
}

double median(std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: process_vm BYTES ITERATIONS CORE_A CORE_B\n");
        return 2;
    }
    const auto bytes = static_cast<std::size_t>(std::strtoul(argv[1], nullptr, 10));
    const int iterations = std::atoi(argv[2]);
    if (bytes < 1 || bytes > (1U << 20) || iterations < 1) return 2;
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    auto* shared = new (memory) Shared;

    const pid_t child = fork();
    if (child < 0) return 1;
    const int me = child == 0 ? 1 : 0;
    if (me == 1) prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(std::atoi(argv[3 + me]));
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    // Private memory, as perftest's: the first half is sent from, the second written to.
    auto* buffer = static_cast<char*>(std::calloc(2, bytes));
    shared->sides[me].buffer.store(buffer);
    shared->sides[me].pid.store(getpid());
    Side& peer = shared->sides[1 - me];
    while (peer.pid.load() == 0) {
    }
    const pid_t target = peer.pid.load();
    iovec local{buffer, bytes};
    iovec remote{peer.buffer.load() + bytes, bytes};
    std::atomic_ref<char> tail{buffer[2 * bytes - 1]};
    std::vector<double> round_trips;
    std::vector<double> calls;
    for (int i = 1; i <= iterations; ++i) {
        const auto value = static_cast<char>(i);
        if (me == 1) {
            while (tail.load(std::memory_order_acquire) != value) {
            }
        }
        buffer[bytes - 1] = value;
        const auto start = Clock::now();
        if (process_vm_writev(target, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) {
            std::perror("process_vm_writev");
            return 1;
        }
        const auto called = Clock::now();
        if (me == 0) {
            while (tail.load(std::memory_order_acquire) != value) {
            }
            round_trips.push_back(microseconds(Clock::now() - start) / 2);
            calls.push_back(microseconds(called - start));
        }
    }
    if (me == 1) return 0;
    std::printf("%.3f %.3f\n", median(round_trips), median(calls));
    int status = 0;
    waitpid(child, &status, 0);
    return status == 0 ? 0 : 1;
}
