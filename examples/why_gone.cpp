// Finds out why the other end of a channel went away: it closed, or its program ended.
//     why_gone listen unix:/tmp/c     waits for a client, and says what became of it
//     why_gone unix:/tmp/c close      a client that closes
//     why_gone unix:/tmp/c abort      a client whose program ends as by kill -9
#include <millrace/base/error.hpp>
#include <millrace/message/channel.hpp>

#include <csignal>
#include <cstdio>
#include <string_view>
#include <vector>

using namespace millrace;

int main(int argc, char** argv) try {
    if (argc != 3) return 2;
    const auto soon = base::Deadline::after(std::chrono::seconds{10});
    if (std::string_view{argv[1]} != "listen") {
        auto channel = message::connect(argv[1], {}, soon);
        if (std::string_view{argv[2]} == "abort") std::raise(SIGKILL);
        return channel.close(soon) == base::Status::ok ? 0 : 1;
    }
    auto channel = message::Listener::listen(argv[2]).accept(soon);
    std::vector<std::byte> message;
    switch (channel.receive(message, soon)) {
        case base::Status::ok: std::puts("it sent a message"); break;
        case base::Status::closed: std::puts("it closed"); break;
        case base::Status::peer_lost: std::printf("lost: %s\n", channel.failure().c_str()); break;
        default: std::puts("nothing happened in time"); break;
    }
} catch (const base::Error& error) {
    std::fprintf(stderr, "why_gone: %s\n", error.what());
    return 1;
}
