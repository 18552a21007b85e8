// Messages to another process and back.
//     echo listen 127.0.0.1:7000          answers one client, until it has no more to say
//     echo 127.0.0.1:7000 hello there     sends each word and prints what comes back
#include <millrace/base/error.hpp>
#include <millrace/message/channel.hpp>

#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

using namespace millrace;
using Bytes = std::vector<std::byte>;

static base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{10}); }

static int answer(const connect::Address& address) {
    auto listener = message::Listener::listen(address);
    auto channel = listener.accept(soon());
    base::Status status;
    for (Bytes word; (status = channel.receive(word, soon())) == base::Status::ok;) {
        if (channel.send(word, soon()) != base::Status::ok) return 1;
    }
    return status == base::Status::closed ? 0 : 1;  // closed: the client said goodbye
}

static int ask(const connect::Address& address, std::span<char*> words) {
    auto channel = message::connect(address, {}, soon());
    for (const std::string_view word : words) {
        Bytes echo;
        if (channel.send(std::as_bytes(std::span{word}), soon()) != base::Status::ok ||
            channel.receive(echo, soon()) != base::Status::ok) {
            return 1;
        }
        std::printf("%.*s\n", static_cast<int>(echo.size()),
                    reinterpret_cast<const char*>(echo.data()));
    }
    return channel.close(soon()) == base::Status::ok ? 0 : 1;
}

int main(int argc, char** argv) try {
    if (argc < 3) return 2;
    const std::span words{argv, static_cast<std::size_t>(argc)};
    if (std::string_view{argv[1]} == "listen") return answer(connect::Address::parse(argv[2]));
    return ask(connect::Address::parse(argv[1]), words.subspan(2));
} catch (const base::Error& error) {
    std::fprintf(stderr, "echo: %s\n", error.what());
    return 1;
}
