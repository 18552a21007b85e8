// A producer for an example that takes numbers: its program is killed before it has said all.
#include <millrace/flow/producer.hpp>

#include <csignal>

int main(int, char** argv) {
    using namespace millrace;
    const auto soon = base::Deadline::after(std::chrono::seconds{20});
    auto numbers = flow::Producer<long>::connect(argv[1], {}, soon);
    for (const long number : {1, 2, 3}) {
        if (numbers.enqueue(number, soon) != base::Status::ok) return 1;
    }
    if (numbers.flush(soon) != base::Status::ok) return 1;
    return std::raise(SIGKILL);
}
