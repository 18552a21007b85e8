// Sends each word as a line to a log_server.
#include <millrace/flow/producer.hpp>

#include <cstdio>
#include <string_view>

using namespace millrace;

int main(int argc, char** argv) try {
    const auto soon = base::Deadline::after(std::chrono::seconds{10});
    auto log = flow::Producer<flow::Bytes>::connect(argv[1], {}, soon);
    for (int i = 2; i < argc; ++i) {
        const std::string_view line{argv[i]};
        if (log.enqueue(std::as_bytes(std::span{line}), soon) != base::Status::ok) return 1;
    }
    return log.close(soon) == base::Status::ok ? 0 : 1;
} catch (const base::Error& error) {
    std::fprintf(stderr, "log_client: %s\n", error.what());
    return 1;
}
