// Bytes to another process, straight into its memory when it is ready for them.
//     stream_copy listen 127.0.0.1:7000 > copy
//     stream_copy 127.0.0.1:7000 < original
#include <millrace/stream/socket.hpp>

#include <cstdio>
#include <string_view>
using namespace millrace;
constexpr std::size_t size = 256 << 10;
static base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{10}); }

static int receive(stream::Socket socket, stream::Buffer& memory) {
    const auto place = [&](std::uint64_t id) { return memory.slice(id * size, size); };
    for (std::uint64_t id = 0; id < 2; ++id) (void)socket.receive(place(id), id);
    stream::Completion done;
    while (socket.wait(done, soon()) == base::Status::ok && done.status == base::Status::ok) {
        std::fwrite(place(done.id).bytes().data(), 1, done.bytes, stdout);
        if (socket.receive(place(done.id), done.id) != base::Status::ok) return 1;
    }
    return done.status == base::Status::closed ? 0 : 1;  // closed: the end of the stream
}

static int send(stream::Socket socket, stream::Buffer& memory) {
    for (stream::Completion done; const auto bytes = std::fread(memory.data(), 1, size, stdin);) {
        if (socket.send(memory.slice(0, bytes), 0) != base::Status::ok) return 1;
        if (socket.wait(done, soon()) != base::Status::ok) return 1;
    }
    return socket.close(soon()) == base::Status::ok ? 0 : 1;
}

int main(int argc, char** argv) try {
    const auto address = connect::Address::parse(argc < 2 ? "" : argv[argc - 1]);
    stream::Buffer memory{2 * size};  // outlives the socket that lends it out
    if (std::string_view{argv[1]} != "listen")
        return send(stream::connect(address, {}, soon()), memory);
    return receive(stream::Listener::listen(address).accept(soon()), memory);
} catch (const base::Error& error) {
    std::fprintf(stderr, "stream_copy: %s\n", error.what());
    return 1;
}
