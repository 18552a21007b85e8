// One log for many programs, in one thread: whoever comes has a queue of its own.
//     log_server listen unix:/run/log 3        prints what comes, until 3 programs have left
//     log_server unix:/run/log first second    sends each word as a line
#include <millrace/connect/hub.hpp>
#include <millrace/flow/any.hpp>

#include <cstdio>
#include <cstdlib>
#include <list>
#include <string_view>

using namespace millrace;
using Lines = flow::Consumer<flow::Bytes>;

static int serve(const char* address, int programs) {
    connect::Hub hub;
    auto listener = flow::Listener::listen(address);
    std::list<Lines> queues;
    const auto print = [&](std::list<Lines>::iterator queue, connect::Hub::Id id) {
        std::vector<std::byte> line;
        base::Status status;
        while ((status = queue->try_dequeue(line)) == base::Status::ok) {
            std::printf("%.*s\n", static_cast<int>(line.size()),
                        reinterpret_cast<char*>(line.data()));
        }
        if (status == base::Status::empty) return;
        if (status != base::Status::closed) std::printf("%s\n", queue->explain().c_str());
        hub.remove(id);
        queues.erase(queue);
        if (--programs == 0) hub.stop();
    };
    hub.add(listener.descriptor(), [&] {
        while (auto queue = Lines::try_accept(listener)) {
            const auto at = queues.insert(queues.end(), std::move(*queue));
            auto id = std::make_shared<connect::Hub::Id>();
            *id = hub.add(at->descriptor(), [&print, at, id] { print(at, *id); });
        }
    });
    hub.run();
    return 0;
}

int main(int argc, char** argv) try {
    if (argc == 4 && std::string_view{argv[1]} == "listen")
        return serve(argv[2], std::atoi(argv[3]));
    if (argc < 3) return 2;
    const auto soon = base::Deadline::after(std::chrono::seconds{10});
    auto log = flow::Producer<flow::Bytes>::connect(argv[1], {}, soon);
    for (int i = 2; i < argc; ++i) {
        if (log.enqueue(std::as_bytes(std::span{std::string_view{argv[i]}}), soon) !=
            base::Status::ok) {
            return 1;
        }
    }
    return log.close(soon) == base::Status::ok ? 0 : 1;
} catch (const base::Error& error) {
    std::fprintf(stderr, "log_server: %s\n", error.what());
    return 1;
}
