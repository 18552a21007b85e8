#include "demo.hpp"

#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "command_line/output.hpp"
#include "hosts.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/placement.hpp"
#include "millrace/verbs/device.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "run.hpp"
#include "store.hpp"
#include "transport.hpp"

namespace millrace::tools {
namespace {

using namespace demo;
namespace fs = std::filesystem;

/// A folder for socket paths that only this process uses; removed with everything in it.
class ScratchFolder {
  public:
    ScratchFolder() {
        std::string pattern = (fs::temp_directory_path() / "millrace-demo-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) {
            base::throw_errno(errno, "make a folder", pattern, "set TMPDIR to a writable folder");
        }
        path_ = pattern;
    }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    ~ScratchFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }

  private:
    std::string path_;
};

RecordSet load(const DemoOptions& options, const std::string& path, std::uint64_t limit) {
    ProgressLine line{fmt::format("reading {}", path), limit, "MB", 1e6};
    return load_records(path, limit, options.record_size,
                        [&](std::uint64_t bytes) { line.update(bytes); });
}

std::vector<Transport> all_transports() {
    std::vector<Transport> all = flow_transports();
    all.push_back(message_transport());
    for (Transport& transport : socket_transports()) all.push_back(std::move(transport));
    all.push_back(udp_transport());
    return all;
}

/// What the others are compared to. A Unix socket leads to no other host.
std::string baseline_of(const DemoOptions& options) { return options.hosts ? "tcp" : "unix"; }

/// UDP is beside the wire, which is made of it.
bool runs(const Transport& transport, const DemoOptions& options) {
    return transport.key != (options.hosts ? "unix" : "udp");
}

std::vector<Transport> contenders(const DemoOptions& options) {
    std::vector<Transport> all = all_transports();
    std::erase_if(all, [&](const Transport& transport) {
        return !runs(transport, options) ||
               (!options.only.empty() && transport.key != options.only &&
                transport.key != baseline_of(options));
    });
    return all;
}

}  // namespace

std::vector<std::string> demo_transports() {
    std::vector<std::string> keys;
    for (const Transport& transport : all_transports()) keys.push_back(transport.key);
    return keys;
}

void check_demo(const DemoOptions& options) {
    if (options.record_size == 0 || options.rounds == 0) {
        throw base::Error{base::ErrorCode::invalid_argument, "run the demo", "its options",
                          "record size and rounds must be at least 1", ""};
    }
    if (options.network_namespaces && !options.hosts) {
        throw base::Error{base::ErrorCode::invalid_argument, "run the demo", "--netns",
                          "it says what the two hosts are", "say --hosts, too"};
    }
    if (options.only == (options.hosts ? "unix" : "udp")) {
        throw base::Error{base::ErrorCode::invalid_argument, "run the demo",
                          fmt::format("--only {}{}", options.only, options.hosts ? " --hosts" : ""),
                          options.hosts ? "a Unix socket leads to no other host"
                                        : "UDP is compared between two hosts",
                          options.hosts ? "say --only tcp, or leave it out" : "say --hosts, too"};
    }
    // A frame of a flow queue takes at most half of its ring; and a record has a header, too.
    const std::uint64_t least = std::bit_ceil(2 * (std::uint64_t{options.record_size} + 64));
    constexpr std::uint64_t most = std::uint64_t{1} << 30;
    if (options.ring_bytes < least || options.ring_bytes > most ||
        !std::has_single_bit(options.ring_bytes)) {
        throw base::Error{
            base::ErrorCode::invalid_argument, "run the demo",
            fmt::format("--ring {} with --record-size {}", options.ring_bytes, options.record_size),
            fmt::format("every transport gets the same ring: for such records a power of two "
                        "from {} to {}",
                        least, most),
            fmt::format("say --ring {}, or more", least)};
    }
}

int run_demo(const DemoOptions& options) {
    // What would fail later is told before a second goes into reading files.
    options.json.check();
    const bool default_path = options.path.empty();
    const std::string path = default_path ? "/usr/lib" : options.path;
    const std::uint64_t limit = options.limit.value_or(default_path ? 256ull << 20 : 1ull << 30);
    std::unique_ptr<const Hosts> hosts;
    std::string device;
    if (options.hosts) {
        hosts = options.network_namespaces ? Hosts::as_namespaces() : Hosts::as_addresses();
        device = fmt::format("soft0, over its wire (RoCEv2 in UDP): {}", hosts->words());
    } else {
        // So is a missing device.
        const verbs::DeviceFacts facts = verbs::find_device().facts();
        device = fmt::format("{} ({})", facts.name, facts.description);
    }
    std::vector<Transport> transports = contenders(options);
    const RecordSet set = load(options, path, limit);

    const std::vector<int> cores = base::available_cores();
    RunOptions run;
    ScratchFolder scratch;
    run.rendezvous_folder = scratch.path();
    run.record_size = options.record_size;
    run.ring_bytes = options.ring_bytes;
    if (cores.size() >= 2) {
        run.producer_core = cores[0];
        run.consumer_core = cores[1];
    }
    Setting setting;
    setting.device = device;
    setting.hosts = options.hosts;
    run.hosts = hosts.get();
    setting.placement =
        cores.size() >= 2
            ? fmt::format("producer on core {}, consumer on core {}", cores[0], cores[1])
            : std::string{"both ends share the only core: times mean little"};
    setting.source =
        fmt::format("{}: {}, {} records, {:.0f} MB", path,
                    set.files == 1 ? std::string{"1 file"} : fmt::format("{} files", set.files),
                    set.records.size(), static_cast<double>(set.bytes) / 1e6);
    if (const std::string left_out = set.left_out(limit); !left_out.empty()) {
        setting.source += fmt::format(" ({})", left_out);
    }
    setting.record_size = options.record_size;
    setting.ring_bytes = options.ring_bytes;
    const bool lines = !options.json.in_place_of_lines();
    if (lines) {
        print_wrapped(
            "Millrace demo: every record goes from one process to another and is checked.\n\n");
    }

    std::vector<Measured> measured;
    for (const Transport& transport : transports) {
        measured.push_back({transport.key, transport.title, transport.baseline, {}});
    }
    for (std::uint32_t round = 0; round < options.rounds; ++round) {
        for (std::size_t i = 0; i < transports.size(); ++i) {
            ProgressLine line{
                fmt::format("round {}/{}  {:<24}", round + 1, options.rounds, transports[i].title),
                set.bytes, "MB", 1e6};
            measured[i].rounds.push_back(
                run_once(transports[i], set, run,
                         [&](std::uint64_t, std::uint64_t bytes) { line.update(bytes); }));
        }
    }
    std::vector<StoreMeasured> store;
    if (options.only.empty() && !options.hosts) store = run_store(scratch.path());
    const std::string against = baseline_of(options);
    if (lines) {
        fmt::print("{}\n{}\n{}", table(measured, against), chart(measured), meaning(setting));
        if (!store.empty()) fmt::print("\n{}", store_text(store));
    }
    if (options.json.wanted()) {
        nlohmann::json json = as_json(measured, setting, against);
        if (!store.empty()) json["store"] = store_json(store);
        options.json.write(json.dump(2));
        if (lines) fmt::print("\nresults also in {}\n", options.json.path);
    }
    return 0;
}

}  // namespace millrace::tools
