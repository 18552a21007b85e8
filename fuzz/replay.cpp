// Drives a fuzzer without libFuzzer, as a test: each file of the folders (or files) named, then
// random inputs from a seed, until the seconds are over. An input that does not return ends the
// program. What was running when the program ends badly is left in crash-<name>.
//
//   fuzz_<name> [--seconds N] [--seed N] [--only-files] FILE|FOLDER...
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz/target.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr unsigned patience = 30;  ///< seconds for one input
constexpr std::size_t longest = 600;
constexpr std::uint64_t most_random = 3000;

const Bytes* running = nullptr;
char kept_path[256];

/// Async-signal-safe: writes the input that is running to a file, and dies of the signal.
void keep(int signal) {
    std::signal(signal, SIG_DFL);
    if (running != nullptr) {
        if (std::FILE* const file = std::fopen(kept_path, "wb"); file != nullptr) {
            std::fwrite(running->data(), 1, running->size(), file);
            std::fclose(file);
        }
        static constexpr char text[] = "the input that was running is kept in ";
        static_cast<void>(!::write(2, text, sizeof text - 1));
        static_cast<void>(!::write(2, kept_path, std::strlen(kept_path)));
        static_cast<void>(!::write(2, "\n", 1));
    }
    std::raise(signal);
}

void run(const Bytes& input) {
    running = &input;
    alarm(patience);
    LLVMFuzzerTestOneInput(input.data(), input.size());
    alarm(0);
    running = nullptr;
}

Bytes read(const std::filesystem::path& path) {
    std::ifstream file{path, std::ios::binary};
    return Bytes{std::istreambuf_iterator<char>{file}, {}};
}

}  // namespace

int main(int argc, char** argv) {
    LLVMFuzzerInitialize(&argc, &argv);
    std::snprintf(kept_path, sizeof kept_path, "crash-%s", program_invocation_short_name);
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGALRM, SIGFPE, SIGILL}) {
        std::signal(signal, keep);
    }
    double seconds = 3;
    std::uint64_t seed = std::random_device{}();
    std::vector<Bytes> inputs;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument == "--seconds" && i + 1 < argc) {
            seconds = std::strtod(argv[++i], nullptr);
        } else if (argument == "--seed" && i + 1 < argc) {
            seed = std::strtoull(argv[++i], nullptr, 10);
        } else if (argument == "--only-files") {
            seconds = 0;
        } else if (std::filesystem::is_directory(argument)) {
            for (const auto& entry : std::filesystem::directory_iterator{argument}) {
                inputs.push_back(read(entry.path()));
            }
        } else if (std::filesystem::exists(argument)) {
            inputs.push_back(read(argument));
        } else {
            std::fprintf(stderr, "%s: there is no '%s'\n", argv[0], argument.c_str());
            return 2;
        }
    }
    for (const Bytes& input : inputs) run(input);

    // Random ones: from nothing, or a kept one with some bytes changed.
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>{seconds};
    std::mt19937_64 random{seed};
    std::uint64_t count = 0;
    while (std::chrono::steady_clock::now() < end && count < most_random) {
        Bytes input;
        if (!inputs.empty() && random() % 2 == 0) {
            input = inputs[random() % inputs.size()];
            for (std::uint64_t change = random() % 8; change > 0 && !input.empty(); --change) {
                input[random() % input.size()] = static_cast<std::uint8_t>(random());
            }
        } else {
            input.resize(random() % longest);
            for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random());
        }
        run(input);
        ++count;
    }
    std::printf("%zu kept inputs and %llu random ones of seed %llu\n", inputs.size(),
                static_cast<unsigned long long>(count), static_cast<unsigned long long>(seed));
    return 0;
}
