// A program with a log of its own takes the library's lines, too.
#include <millrace/base/error.hpp>
#include <millrace/base/log_output.hpp>
#include <millrace/verbs/device.hpp>

#include <cstdio>
#include <string>

using namespace millrace;

int main() try {
    base::set_log_level(base::LogLevel::info);
    base::set_log_sink([](base::LogLevel level, std::string_view component, std::string_view text) {
        std::printf("my log: [%s] %s: %s\n", std::string{base::name_of(level)}.c_str(),
                    std::string{component}.c_str(), std::string{text}.c_str());
    });
    const verbs::Device device = verbs::find_device();
    std::printf("%s: %s\n", std::string{device.name()}.c_str(), device.facts().description.c_str());
} catch (const base::Error& error) {
    std::fprintf(stderr, "log_lines: %s\n", error.what());
    return 1;
}
