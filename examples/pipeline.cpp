// Three programs in a row, each a stage: numbers, their squares, their sum.
//     pipeline unix:/tmp/a -                  feeds 1 to 1,000 into the queue a
//     pipeline unix:/tmp/a unix:/tmp/b        takes from a, puts squares into b
//     pipeline - unix:/tmp/b                  takes from b, prints the sum
// Who takes from a queue listens; a stage ends when the one before it has closed.
#include <millrace/flow/consumer.hpp>
#include <millrace/flow/producer.hpp>

#include <cstdio>
#include <string_view>

using namespace millrace;

int main(int argc, char** argv) try {
    if (argc != 3) return 2;
    const std::string_view from{argv[1]}, to{argv[2]};
    const auto soon = base::Deadline::after(std::chrono::seconds{10});
    long number = 0;
    if (to == "-") {
        auto out = flow::Producer<long>::connect(from, {}, soon);
        while (++number <= 1000) {
            if (out.enqueue(number, soon) != base::Status::ok) return 1;
        }
        return out.close(soon) == base::Status::ok ? 0 : 1;
    }
    if (from == "-") {
        auto in = flow::Consumer<long>::listen(to, {}, soon);
        long sum = 0;
        base::Status status;
        while ((status = in.dequeue(number, soon)) == base::Status::ok) sum += number;
        std::printf("%ld\n", sum);
        return status == base::Status::closed ? 0 : 1;
    }
    auto in = flow::Consumer<long>::listen(from, {}, soon);
    auto out = flow::Producer<long>::connect(to, {}, soon);
    base::Status status;
    while ((status = in.dequeue(number, soon)) == base::Status::ok) {
        if (out.enqueue(number * number, soon) != base::Status::ok) return 1;
    }
    return status == base::Status::closed && out.close(soon) == base::Status::ok ? 0 : 1;
} catch (const base::Error& error) {
    std::fprintf(stderr, "pipeline: %s\n", error.what());
    return 1;
}
