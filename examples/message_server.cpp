// Serves requests of any number of clients by one thread, until it has answered as many as asked.
//
//     message_server ADDRESS COUNT       answers what it is asked in capital letters
//     message_client ADDRESS WORD...
#include <cctype>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>

#include <millrace/message/server.hpp>

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    try {
        auto server = millrace::message::Server::listen(argv[1]);
        long left = std::atol(argv[2]);
        const auto answer = [&](millrace::message::Request& request) {
            const auto word = request.payload();
            (void)request.answer(word.size(), [&](std::span<std::byte> room) {
                for (std::size_t i = 0; i < word.size(); ++i) {
                    room[i] = static_cast<std::byte>(std::toupper(static_cast<int>(word[i])));
                }
            });
            if (--left == 0) server.stop();
        };
        (void)server.serve(answer, millrace::base::Deadline::never());
        // Every answer is on its way to its client before this returns.
        (void)server.close(millrace::base::Deadline::after(std::chrono::seconds{5}));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
