// Three programs in a row, each a stage: numbers, their squares, their sum.
//     pipeline - unix:/tmp/b &  pipeline unix:/tmp/a unix:/tmp/b &  pipeline unix:/tmp/a -
// Who takes from a queue listens; a stage ends when the one before it has closed.
#include <millrace/flow/consumer.hpp>
#include <millrace/flow/producer.hpp>

#include <cstdio>
#include <string_view>

using namespace millrace;
using base::Status;

int main(int, char** argv) try {
    const std::string_view from{argv[1]}, to{argv[2]};
    const auto soon = base::Deadline::after(std::chrono::seconds{10});
    long number = 0;
    Status status = Status::ok;
    if (to == "-") {
        auto out = flow::Producer<long>::connect(from, {}, soon);
        while (++number <= 1000 && status == Status::ok) status = out.enqueue(number, soon);
        return status == Status::ok && out.close(soon) == Status::ok ? 0 : 1;
    }
    auto in = flow::Consumer<long>::listen(from == "-" ? to : from, {}, soon);
    if (from == "-") {
        long sum = 0;
        while ((status = in.dequeue(number, soon)) == Status::ok) sum += number;
        std::printf("%ld\n", sum);
        return status == Status::closed ? 0 : 1;
    }
    auto out = flow::Producer<long>::connect(to, {}, soon);
    while ((status = in.dequeue(number, soon)) == Status::ok) {
        if (out.enqueue(number * number, soon) != Status::ok) return 1;
    }
    return status == Status::closed && out.close(soon) == Status::ok ? 0 : 1;
} catch (const base::Error& error) {
    std::fprintf(stderr, "pipeline: %s\n", error.what());
    return 1;
}
