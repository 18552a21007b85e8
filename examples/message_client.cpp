// Asks a message_server for each word, one after the other.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <millrace/message/client.hpp>

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const auto deadline = millrace::base::Deadline::after(std::chrono::seconds{20});
    try {
        const char* const address = argv[1];
        auto client = millrace::message::Client::connect(address, {}, deadline);
        std::vector<std::byte> answer;
        for (int i = 2; i < argc; ++i) {
            const std::span word{argv[i], std::strlen(argv[i])};
            const auto outcome = client.call(std::as_bytes(word), answer, deadline);
            if (outcome != millrace::message::Outcome::ok) {
                std::fprintf(stderr, "%s\n", std::string{name_of(outcome)}.c_str());
                return 1;
            }
            std::printf("%.*s\n", static_cast<int>(answer.size()),
                        reinterpret_cast<const char*>(answer.data()));
        }
        (void)client.close(deadline);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
