// One log for many programs, in one thread, until so many have left. Each has a queue of its own.
//     log_server unix:/tmp/log 2 & log_client unix:/tmp/log one two & log_client unix:/tmp/log end
#include <millrace/connect/hub.hpp>
#include <millrace/flow/consumer.hpp>

#include <cstdio>
#include <cstdlib>
#include <map>

using namespace millrace;
using Lines = flow::Consumer<flow::Bytes>;

int main(int, char** argv) try {
    int programs = std::atoi(argv[2]);
    connect::Hub hub;
    auto listener = flow::Listener::listen(argv[1]);
    std::map<int, std::pair<Lines, connect::Hub::Id>> queues;
    const auto print = [&](int descriptor) {
        auto& [queue, id] = queues.at(descriptor);
        std::vector<std::byte> line;
        auto status = queue.try_dequeue(line);
        for (; status == base::Status::ok; status = queue.try_dequeue(line)) {
            std::printf("%.*s\n", int(line.size()), reinterpret_cast<char*>(line.data()));
        }
        if (status == base::Status::empty) return;  // else it has closed, or died
        hub.remove(id), queues.erase(descriptor);
        if (--programs == 0) hub.stop();
    };
    hub.add(listener.descriptor(), [&] {
        while (auto queue = Lines::try_accept(listener)) {
            const int descriptor = queue->descriptor();
            const auto id = hub.add_end(descriptor, [&print, descriptor] { print(descriptor); });
            queues.emplace(descriptor, std::pair{std::move(*queue), id});
        }
    });
    (void)hub.run();
} catch (const base::Error& error) {
    std::fprintf(stderr, "log_server: %s\n", error.what());
    return 1;
}
