// Profiles as text and as files.
#include "millrace/flow/profile.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/connect/link.hpp"
#include "millrace/verbs/device.hpp"

namespace millrace::flow {
namespace {

using base::Error;
using base::ErrorCode;

constexpr const char* kind_of_file = "millrace flow profile";
constexpr const char* read_it = "read a profile of flow structures";
constexpr const char* write_it = "write a profile of flow structures";
constexpr const char* measure_anew = "measure one by: millrace tune";

/// Four figures that count: no measurement gives more.
double rounded(double figure) { return std::stod(fmt::format("{:.4g}", figure)); }

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
    throw Error{ErrorCode::invalid_argument, read_it, name, why, measure_anew};
}

std::string line_words(const Load& load) {
    return fmt::format("items of {} B, burst {}", load.item_bytes, load.burst);
}

ProfileOrigin origin_of(const nlohmann::json& document) {
    return {.device = document.at("device").get<std::string>(),
            .mode = document.at("mode").get<std::string>(),
            .is_stored = document.at("stored").get<bool>(),
            .machine = document.at("machine").get<std::string>(),
            .date = document.at("date").get<std::string>()};
}

/// The library of JSON would take true for 1, and -1 for a large number.
template <class Number>
Number whole(const nlohmann::json& entry, const char* field) {
    const nlohmann::json& value = entry.at(field);
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > std::numeric_limits<Number>::max()) {
        throw std::invalid_argument{
            fmt::format("{} is {}, where a whole number must be", field, value.dump())};
    }
    return value.get<Number>();
}

std::vector<ProfileLine> lines_of(const nlohmann::json& document) {
    std::vector<ProfileLine> lines;
    for (const nlohmann::json& entry : document.at("loads")) {
        const Load load{.item_bytes = whole<std::size_t>(entry, "item_bytes"),
                        .burst = whole<std::uint32_t>(entry, "burst"),
                        .producer_is_busy = entry.at("producer_busy").get<bool>(),
                        .consumer_is_busy = entry.at("consumer_busy").get<bool>()};
        for (const auto& [name, figure] : entry.at("points").items()) {
            lines.push_back({load, ring::parse_design(name), figure.get<double>()});
        }
    }
    return lines;
}

/// What may stand in a file's name; of the rest a '-'.
std::string as_name(std::string text) {
    std::replace_if(
        text.begin(), text.end(),
        [](unsigned char letter) {
            return std::isalnum(letter) == 0 && letter != '.' && letter != '_' && letter != '=';
        },
        '-');
    return text;
}

}  // namespace

Profile::Profile(ProfileOrigin origin, std::vector<ProfileLine> lines)
    : origin_{std::move(origin)}, lines_{std::move(lines)} {
    const std::string name = fmt::format("a profile of {}", origin_.device);
    if (lines_.empty()) refuse(name, "there is no measured point in it");
    for (ProfileLine& line : lines_) {
        if (line.load.item_bytes == 0) refuse(name, "items of 0 B were not measured");
        if (!(line.figure > 0) || !std::isfinite(line.figure)) {
            refuse(name, fmt::format("{}, {}: no measurement gives {}", line_words(line.load),
                                     ring::to_string(line.design.design, line.design.batch),
                                     line.figure));
        }
        line.figure = rounded(line.figure);
    }
}

Profile Profile::parse(std::string_view text, const std::string& name) {
    try {
        const auto document = nlohmann::json::parse(text);
        if (document.value("what", "") != kind_of_file) refuse(name, "it is no such profile");
        if (const int found = whole<std::uint32_t>(document, "version"); found != version) {
            throw Error{ErrorCode::version_mismatch, read_it, name,
                        fmt::format("it has version {} of the format, this library reads {}", found,
                                    version),
                        measure_anew};
        }
        return {origin_of(document), lines_of(document)};
    } catch (const Error& error) {
        if (error.object() == name) throw;
        refuse(name, fmt::format("{}: {}", error.object(), error.cause()));
    } catch (const std::exception& error) {
        refuse(name, error.what());
    }
}

Profile Profile::load(const std::string& path) {
    errno = 0;
    std::ifstream file{path};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    if (!file.is_open() || file.bad()) {
        const int cause = errno;
        throw Error{cause == ENOENT ? ErrorCode::not_found : base::code_of_errno(cause), read_it,
                    path, base::describe_errno(cause), measure_anew};
    }
    return parse(text, path);
}

Profile Profile::load() {
    const auto endpoint = connect::Endpoint::shared();
    const std::string device{endpoint->context().name()};
    const std::string mode = endpoint->context().is_soft() ? verbs::soft_mode() : std::string{};
    const std::string path = default_path(device, mode);
    Profile read = load(path);
    const ProfileOrigin& origin = read.origin();
    if (origin.device != device || origin.mode != mode) {
        refuse(path, fmt::format("it is of {} {}, not of {} {}", origin.device, origin.mode, device,
                                 mode));
    }
    if (const std::string here = this_machine(); origin.machine != here) {
        refuse(path, fmt::format("it was measured on another machine ({}), this one is {}",
                                 origin.machine, here));
    }
    return read;
}

std::string Profile::text() const {
    auto loads = nlohmann::ordered_json::array();
    for (const ProfileLine& line : lines_) {
        const nlohmann::ordered_json load{{"item_bytes", line.load.item_bytes},
                                          {"burst", line.load.burst},
                                          {"producer_busy", line.load.producer_is_busy},
                                          {"consumer_busy", line.load.consumer_is_busy},
                                          {"unit", line.load.burst == 0 ? "items/s" : "ns"}};
        auto found = std::find_if(loads.begin(), loads.end(), [&](const auto& entry) {
            return std::all_of(load.items().begin(), load.items().end(), [&](const auto& item) {
                return entry.at(item.key()) == item.value();
            });
        });
        if (found == loads.end()) {
            loads.push_back(load);
            found = std::prev(loads.end());
        }
        (*found)["points"][ring::to_string(line.design.design, line.design.batch)] = line.figure;
    }
    const nlohmann::ordered_json document{
        {"what", kind_of_file}, {"version", version},          {"device", origin_.device},
        {"mode", origin_.mode}, {"stored", origin_.is_stored}, {"machine", origin_.machine},
        {"date", origin_.date}, {"loads", std::move(loads)}};
    return document.dump(1) + "\n";
}

void Profile::save(const std::string& path) const {
    const std::filesystem::path target{path};
    std::error_code error;
    if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
    const std::string unfinished = fmt::format("{}.{}", path, ::getpid());
    std::ofstream file{unfinished};
    file << text();
    file.close();
    if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
        const int cause = errno;
        (void)std::remove(unfinished.c_str());
        base::throw_errno(cause, write_it, path, "name a file in a folder that is yours");
    }
}

std::string Profile::default_path(const std::string& device, const std::string& mode) {
    const char* const cache = std::getenv("XDG_CACHE_HOME");
    const char* const home = std::getenv("HOME");
    std::string folder;
    if (cache != nullptr && *cache == '/') {  // the rule: a relative one is passed over
        folder = cache;
    } else if (home != nullptr && *home != '\0') {
        folder = fmt::format("{}/.cache", home);
    } else {
        throw Error{ErrorCode::not_found, "find the profile of flow structures", "the user's cache",
                    "neither XDG_CACHE_HOME nor HOME is set", "set one of them, or name a file"};
    }
    return fmt::format("{}/millrace/flow-{}{}.json", folder, as_name(device),
                       mode.empty() ? "" : "-" + as_name(mode));
}

std::string Profile::this_machine() {
    std::ifstream file{"/proc/cpuinfo"};
    std::string model = "a processor";
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("model name") && !line.starts_with("CPU part")) continue;
        const auto colon = line.find(": ");
        if (colon != std::string::npos) model = line.substr(colon + 2);
        break;
    }
    const std::size_t cores = base::available_cores().size();
    return fmt::format("{}, {} core{}", model, cores, cores == 1 ? "" : "s");
}

}  // namespace millrace::flow
