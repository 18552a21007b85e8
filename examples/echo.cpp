// Messages to another process and back.
//     echo listen 127.0.0.1:7000          answers one client, until it has no more to say
//     echo 127.0.0.1:7000 hello there     sends each word and prints what comes back
#include <millrace/message/channel.hpp>

#include <cstdio>
#include <string_view>
#include <vector>

using namespace millrace;

static base::Deadline soon() { return base::Deadline::after(std::chrono::seconds{10}); }

static bool answer(const char* address) {
    auto channel = message::Listener::listen(address).accept(soon());
    std::vector<std::byte> word;
    auto status = channel.receive(word, soon());
    for (; status == base::Status::ok; status = channel.receive(word, soon())) {
        if (channel.send(word, soon()) != base::Status::ok) return false;
    }
    return status == base::Status::closed;  // the client said goodbye
}
static bool ask(const char* address, std::span<char*> words) {
    auto channel = message::connect(address, {}, soon());
    std::vector<std::byte> echo;
    for (const std::string_view word : words) {
        if (channel.send(std::as_bytes(std::span{word}), soon()) != base::Status::ok) return false;
        if (channel.receive(echo, soon()) != base::Status::ok) return false;
        std::printf("%.*s\n", static_cast<int>(echo.size()), reinterpret_cast<char*>(echo.data()));
    }
    return channel.close(soon()) == base::Status::ok;
}
int main(int argc, char** argv) try {
    if (argc < 3) return 2;
    if (std::string_view{argv[1]} == "listen") return answer(argv[2]) ? 0 : 1;
    return ask(argv[1], {argv + 2, argv + argc}) ? 0 : 1;
} catch (const base::Error& error) {
    std::fprintf(stderr, "echo: %s\n", error.what());
    return 1;
}
