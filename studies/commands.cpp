// See commands.hpp: the words of each study on the command line.
#include "commands.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/ycsb/connections.hpp"
#include "command_line/numbers.hpp"
#include "studies/flow/run_flow.hpp"
#include "studies/flow/tune.hpp"
#include "studies/framework/kept_points.hpp"
#include "studies/framework/study.hpp"
#include "studies/kv/run_kv.hpp"
#include "studies/message/run_message.hpp"
#include "studies/rpc/run_rpc.hpp"
#include "studies/rpc/write_profile.hpp"
#include "studies/stream/run_stream.hpp"
#include "studies/verbs/run_verbs.hpp"
#include "studies/ycsb/run_ycsb.hpp"
#include "workload/ycsb/workload.hpp"

namespace millrace::bench {
namespace {

using tools::Action;
using tools::add_json;
using tools::bytes_between;
using tools::fraction_between;
using tools::whole_between;

/// What everything that repeats a work's figures is told alike.
template <class Options>
void add_study(CLI::App& command, Options& options) {
    add_json(command, options.json);
    command.add_option("--plots", options.plots, "Draw every figure into this folder")
        ->type_name("FOLDER");
    command.add_option("--repeats", options.repeats, "Runs of each point")
        ->transform(whole_between(1, 100))
        ->capture_default_str();
    command.add_flag("--quick", options.quick, "Few sizes, one short run of each");
    options.points = points_file(command.get_name());
    command.add_flag("--resume", options.resume,
                     "Go on with a run that was interrupted, with what it had measured; the other "
                     "options as they were");
}

void add_flow(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "flow",
        "Repeat the evaluation of flow queues in work 000, chapter 6, on the soft device: its "
        "figures and tables with its numbers and findings, and maps of all 33 points. "
        "As in the work: --repeats 10 --limit 30. Exit status 1 if a point failed");
    auto options = std::make_shared<FlowOptions>();
    command->add_option("--figure", options->figures,
                        "Only these: 6.1 to 6.12, or map; may be given several times");
    command->add_option_function<std::vector<std::string>>(
        "--table",
        [options](const std::vector<std::string>& tables) {
            for (const auto& table : tables) options->figures.push_back("table " + table);
        },
        "Only these: 6.1, 6.2; may be given several times");
    command
        ->add_option("--mode", options->modes,
                     "Only in these modes (docs/modes.md). Else fast, and shaped as the "
                     "networks of the work: 10g or 40g, latency=1us")
        ->type_name(tools::mode_words);
    add_study(*command, *options);
    command->add_option("--limit", options->limit, "Seconds that a run measures at most")
        ->transform(fraction_between(0.01, 600.0))
        ->capture_default_str();
    command->add_option("--items", options->items, "Items of a run, unless the time is over first")
        ->transform(whole_between(100, std::uint64_t{1} << 31))
        ->capture_default_str();
    command->callback([options, &chosen] { chosen = [options] { return run_flow(*options); }; });
}

/// `millrace tune`, which starts this: among the measurements it is not listed.
void add_tune(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "tune",
        "Measure which points of the design space of flow queues do best on this device, and write "
        "a profile that flow::choose() takes");
    command->group("");
    auto options = std::make_shared<TuneOptions>();
    command->add_option("--device", options->device, "Name of the device (see millrace devices)");
    command
        ->add_option("--mode", options->mode,
                     "Of the soft device (docs/modes.md). Default: MILLRACE_SOFT_MODE, else fast")
        ->type_name(tools::mode_words);
    command
        ->add_option("--profile", options->output,
                     "The profile. Default: in the user's cache, where flow::Profile::load() looks")
        ->type_name("FILE");
    add_json(*command, options->json);
    command->add_flag("--quick", options->quick,
                      "Two loads, each point measured for a millisecond");
    auto* const judged =
        command
            ->add_option("--judge", options->judged,
                         "In place of that, draw so many workloads, and compare what the profile "
                         "advises for each with every point. Exit status 1 if one has less than "
                         "90 % of the best")
            ->transform(whole_between(1, 1000))
            ->type_name("NUMBER");
    command
        ->add_option("--seed", options->seed, "Of the workloads that are drawn; else a random one")
        ->transform(whole_between(0, ~std::uint64_t{0}))
        ->needs(judged);
    command->callback([options, &chosen] {
        chosen = [options] { return options->judged ? judge(*options) : tune(*options); };
    });
}

/// The options of a study whose figures have their numbers from the work. `repeats`: unless others
/// are asked for.
std::shared_ptr<StudyOptions> add_study_options(CLI::App& command, int repeats = 3) {
    auto options = std::make_shared<StudyOptions>();
    options->repeats = repeats;
    command.add_option("--figure", options->figures,
                       "Only these, as the work numbers them; may be given several times");
    command
        .add_option("--mode", options->modes,
                    "Only in these modes (docs/modes.md). Else fast, and shaped as the network "
                    "of the work")
        ->type_name(tools::mode_words);
    add_study(command, *options);
    return options;
}

/// A study that asks for nothing but its figures.
void add_plain(CLI::App& parent, Action& chosen, const char* name, const char* description,
               int (*run)(const StudyOptions&)) {
    auto* command = parent.add_subcommand(name, description);
    auto options = add_study_options(*command);
    command->callback(
        [options, run, &chosen] { chosen = [options, run] { return run(*options); }; });
}

void add_verbs(CLI::App& parent, Action& chosen) {
    add_plain(parent, chosen, "verbs",
              "Repeat the measurements of raw verbs in work 001, chapter 3, on the soft device: "
              "transports, kinds of request, and indirect writes, with what the work found. "
              "Exit status 1 if a point failed",
              run_verbs);
}

void add_message(CLI::App& parent, Action& chosen) {
    add_plain(
        parent, chosen, "message",
        "Repeat the evaluation of messages in work 001, chapter 4: calls and loads of one server "
        "and many clients by each polling, over sockets too, and scans of mailboxes, with its "
        "findings. Exit status 1 if a point failed",
        run_message);
}

void add_stream(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "stream",
        "Repeat the evaluation of byte streams in work 003 on the soft device: throughput, "
        "processor time and what goes without a copy, near and over 48 ms, and of sockets. "
        "Exit status 1 if a point failed");
    auto options = add_study_options(*command);
    auto only = std::make_shared<std::optional<stream::Protocol>>();
    command
        ->add_option_function<std::string>(
            "--protocol",
            [only](const std::string& word) {
                if (word == "published") *only = stream::Protocol::published;
                if (word == "extended") *only = stream::Protocol::extended;
            },
            "Of mode dynamic: published, as work 003 has it; extended, what this library does; or "
            "both (default)")
        ->check(CLI::IsMember(std::vector<std::string>{"published", "extended", "both"}))
        ->type_name("WORD");
    command->callback(
        [=, &chosen] { chosen = [options, only] { return run_stream(*options, *only); }; });
}

void add_kv(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "kv",
        "Repeat the evaluation of work 002, chapter 4, on the soft device and over sockets: "
        "clients from 1 to 70, polling, blocking and by default, with memcached and what the "
        "work found. "
        "Exit status 1 if a point failed");
    auto options = add_study_options(*command);
    auto chosen_kv = std::make_shared<KvStudyOptions>();
    KvStudyOptions& of_kv = *chosen_kv;
    command
        ->add_option("--get-percent", of_kv.get_percent,
                     "GETs of all requests, the others SET. The work says 95; its program made 94")
        ->transform(whole_between(0, 100))
        ->capture_default_str();
    command->add_flag("--threads", of_kv.threads,
                      "A server thread for each client and the work's table, as the work's server "
                      "has them, and beside it this library's server");
    command
        ->add_option_function<std::string>(
            "--table",
            [chosen_kv](const std::string& word) {
                chosen_kv->table = word == "thesis" ? kv::TableKind::thesis : kv::TableKind::cuckoo;
            },
            "cuckoo, or thesis: the 1,024 buckets of work 002 with their locks. Default: cuckoo; "
            "with --threads thesis")
        ->check(CLI::IsMember(std::vector<std::string>{"cuckoo", "thesis"}))
        ->type_name("WORD");
    const auto add_crowds = [&](const char* name, std::vector<std::size_t>& crowds,
                                const char* help) {
        command->add_option(name, crowds, help)
            ->delimiter(',')
            ->transform(whole_between(1, most_clients_of_figure))
            ->type_name("NUMBERS")
            ->capture_default_str();
    };
    add_crowds("--clients", of_kv.crowds, "Of the figures over clients, with commas");
    add_crowds("--shown", of_kv.shown,
               "Of the figures and tables that show latencies one by one, with commas");
    command
        ->add_option("--operations", of_kv.operations,
                     "Of each run, all clients together, in place of a quarter of a second; the "
                     "work had 10000000")
        ->transform(whole_between(1, std::uint64_t{1} << 40));
    command
        ->add_option("--save", of_kv.save,
                     "Write every operation of every run into this folder, a CSV file for each "
                     "run, as the work's benchmark did")
        ->type_name("FOLDER");
    command->callback([=, &chosen] {
        for (std::vector<std::size_t>* const each : {&chosen_kv->crowds, &chosen_kv->shown}) {
            std::sort(each->begin(), each->end());
            each->erase(std::unique(each->begin(), each->end()), each->end());
        }
        if (chosen_kv->shown.size() > 26) {
            throw CLI::ValidationError{"--shown takes 26 numbers at most",
                                       CLI::ExitCodes::ValidationError};
        }
        chosen = [options, chosen_kv] { return run_kv(*options, *chosen_kv); };
    });
}

void add_rpc(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "rpc",
        "Repeat the measurements of request and response in work 004 on the soft device: one to "
        "one, N to one, N to M, own connections and dispatchers, empty mailboxes, with what the "
        "work found. Exit status 1 if a point failed");
    // Of 900 points, each the median of its windows: one run of all takes minutes.
    auto options = add_study_options(*command, 1);
    auto memory = std::make_shared<std::size_t>(std::size_t{64} << 20);
    command
        ->add_option("--response-memory", *memory,
                     "Bytes of all responses in the figure of section 4.2 (4G, say; the work had "
                     "several GB), at most half of what this machine has free")
        ->transform(bytes_between(1, std::uint64_t{1} << 40))
        ->capture_default_str();
    auto profile = std::make_shared<ProfileOptions>();
    auto* const file = command->add_option(
        "--profile", profile->file,
        "In place of all that, measure every design of calls, and write a profile for clients "
        "that choose one by it into this file");
    command
        ->add_option("--device", profile->device,
                     "With --profile: of this device; modes are the soft device's")
        ->needs(file)
        ->capture_default_str();
    command->callback([=, &chosen] {
        if (profile->file.empty()) {
            chosen = [options, memory] { return run_rpc(*options, *memory); };
            return;
        }
        profile->modes = options->modes;
        if (command->count("--repeats") != 0) profile->repeats = options->repeats;
        if (options->quick) {
            profile->response_bytes = {64, 4096};
            profile->clients = {1, 8};
            profile->repeats = 1;
        }
        chosen = [profile] { return write_profile(*profile); };
    });
}

void add_ycsb(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "ycsb",
        "Run the Yahoo! Cloud Serving Benchmark, workloads A to F, by this library's own protocol "
        "over each transport, by Redis' and by memcached's, and repeat the evaluation of work 001, "
        "chapter 5, which uses it. Exit status 1 if a point failed");
    auto study = add_study_options(*command);
    auto options = std::make_shared<YcsbOptions>();
    command
        ->add_option_function<std::vector<std::string>>(
            "--workload",
            [options](const std::vector<std::string>& names) {
                for (const std::string& name : names) {
                    const auto letter = static_cast<unsigned char>(name.front());
                    options->workloads.push_back(static_cast<char>(std::toupper(letter)));
                }
            },
            "Only these, a to f; several, with commas. Else all, and the figures of the work")
        ->delimiter(',')
        ->check(CLI::IsMember(std::vector<std::string>{"a", "b", "c", "d", "e", "f"},
                              CLI::ignore_case));
    std::vector<std::string> ways;
    for (const YcsbWay& way : ycsb_ways) ways.emplace_back(way.name);
    command
        ->add_option("--over", options->over,
                     "Only over these; several, with commas: rc, uc, ud, tcp and unix by this "
                     "library's own protocol, redis and memcached by theirs")
        ->delimiter(',')
        ->check(CLI::IsMember(ways));
    command
        ->add_option("--server", options->server,
                     "host:port or unix:PATH of a server that speaks as --over says; without it, "
                     "one is started for each run. Records are written into it")
        ->type_name("ADDRESS");
    command
        ->add_option("--clients", options->clients,
                     "How many, each in a thread of its own; several numbers, with commas. "
                     "Default: 1,16")
        ->delimiter(',')
        ->transform(whole_between(1, 1024))
        ->type_name("NUMBERS");
    command
        ->add_option("--rate", options->rates,
                     "Operations that all clients together offer in a second, whatever the answers "
                     "do; what one takes counts from when it was due. Several numbers, with commas")
        ->delimiter(',')
        ->transform(whole_between(1, 1'000'000'000))
        ->type_name("NUMBERS");
    std::vector<std::string> distributions;
    for (const auto one : {workload::Distribution::zipfian, workload::Distribution::latest,
                           workload::Distribution::uniform, workload::Distribution::exponential,
                           workload::Distribution::hotspot}) {
        distributions.emplace_back(name_of(one));
    }
    command
        ->add_option_function<std::string>(
            "--distribution",
            [options](const std::string& name) {
                options->distribution = workload::parse_distribution(name);
            },
            "Which records are chosen, whatever the workload says")
        ->check(CLI::IsMember(distributions))
        ->type_name("WORD");
    command->add_option("--records", options->records, "That are loaded")
        ->transform(whole_between(1, std::uint64_t{1} << 32))
        ->capture_default_str();
    command->add_option("--fields", options->fields, "Of a record")
        ->transform(whole_between(1, 1000))
        ->capture_default_str();
    command->add_option("--field-bytes", options->field_bytes)
        ->transform(whole_between(workload::RecordFormat::least_field_bytes, 1000))
        ->capture_default_str();
    command
        ->add_option("--seconds", options->seconds,
                     "Of a run, after a quarter of that to warm up; with --quick at most 0.2")
        ->transform(fraction_between(0.01, 1e5))
        ->capture_default_str();
    command->add_flag_callback(
        "--no-load", [options] { options->loads = false; },
        "The server has the records, from a run before");
    command->callback(
        [=, &chosen] { chosen = [options, study] { return run_ycsb(*options, *study); }; });
}

}  // namespace

void add_studies(CLI::App& program, Action& chosen) {
    add_flow(program, chosen);
    add_tune(program, chosen);
    add_verbs(program, chosen);
    add_message(program, chosen);
    add_kv(program, chosen);
    add_rpc(program, chosen);
    add_stream(program, chosen);
    add_ycsb(program, chosen);
}

}  // namespace millrace::bench
