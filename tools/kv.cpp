// See kv.hpp.
#include "kv.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "command_line/numbers.hpp"
#include "kv/ask.hpp"
#include "kv/bench.hpp"
#include "kv/serve.hpp"
#include "millrace/base/log_output.hpp"
#include "millrace/base/wait.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/kv/store.hpp"
#include "millrace/message/server.hpp"
#include "millrace/message/transfer.hpp"

namespace millrace::tools {
namespace {

/// `--server ADDRESS` of those who ask.
void add_server(CLI::App& command, std::string& server, const char* help) {
    command.add_option("--server", server, help)->type_name("ADDRESS");
}

/// An option that takes one of a few words.
void add_choice(CLI::App& command, const char* name, const std::vector<std::string>& words,
                const char* help, const std::function<void(const std::string&)>& choose) {
    command.add_option_function<std::string>(name, choose, help)
        ->check(CLI::IsMember(words))
        ->type_name("WORD");
}

/// `--wait` of those who wait.
void add_wait(CLI::App& command, base::WaitPolicy& policy) {
    add_choice(command, "--wait", {"poll", "block", "default"},
               "poll: never sleep; block: sleep at once; default: look for a while, then sleep",
               [&policy](const std::string& word) {
                   policy = word == "poll"    ? base::WaitPolicy::polling()
                            : word == "block" ? base::WaitPolicy::blocking()
                                              : base::WaitPolicy{.moves = policy.moves};
               });
}

/// `--requests` and `--answers` of a client, which are for `rc`.
void add_transfers(CLI::App& command, message::Transfer& requests, message::Transfer& answers) {
    const auto add = [&](const char* name, const char* help, message::Transfer& chosen) {
        add_choice(command, name, {"write", "send"}, help, [&chosen](const std::string& word) {
            chosen = message::parse_transfer(word).value();
        });
    };
    add("--requests", "Over rc, by WRITE into a ring of the server (default), or by SEND",
        requests);
    add("--answers",
        "Over rc, by WRITE into a ring of the client (default), or by SEND; HERD has requests by "
        "write and answers by send",
        answers);
}

/// Whether small messages travel within their work requests, so that it can be measured.
void add_posting(CLI::App& command, message::PostingHabits& posting) {
    command.add_flag_callback(
        "--no-inline", [&posting] { posting.inlines = false; },
        "Small messages do not travel within their work requests");
}

// Options of both as work 002's programs have them (appendix A.1): -r, -p, -v, -d.

template <class Choose>
void add_rdma(CLI::App& command, Choose choose) {
    add_choice(
        command, "-r,--rdma", {"rc", "uc", "ud"}, "As --transport",
        [choose](const std::string& word) { choose(connect::parse_transport(word).value()); });
}

/// 0: none was given.
std::shared_ptr<std::uint16_t> add_port(CLI::App& command, const char* help) {
    auto port = std::make_shared<std::uint16_t>(0);
    command.add_option("-p,--port", *port, help)->transform(whole_between(1, 65535));
    return port;
}

/// To an address that is a host alone, or none: then it is this host's.
void give_port(std::string& address, std::uint16_t port) {
    if (address.empty()) address = "127.0.0.1";
    if (address.find(':') != std::string::npos) {
        throw CLI::ValidationError{"--port is for a server that is given as a host alone",
                                   CLI::ExitCodes::ValidationError};
    }
    address += ":" + std::to_string(port);
}

void add_log_levels(CLI::App& command) {
    command.add_flag_callback(
        "--verbose,-v", [] { base::set_log_level(base::LogLevel::info); }, "As MILLRACE_LOG=info");
    command.add_flag_callback(
        "--debug,-d", [] { base::set_log_level(base::LogLevel::debug); }, "As MILLRACE_LOG=debug");
}

/// Where clients come who speak another protocol. The options that need one of the addresses.
std::vector<const CLI::Option*> add_doors(CLI::App& command, KvServeOptions& options) {
    const auto add = [&](const char* name, std::string& address, const char* what) {
        command.add_option(name, address, what)->type_name("ADDRESS");
    };
    add("--resp", options.resp, "Let clients of Redis in there: host:port or unix:PATH");
    add("--memcached", options.memcached, "Let clients of memcached in there, likewise");
    const CLI::Option* const password =
        command
            .add_option("--password-file", options.password_file,
                        "What these have to say first: a file that you alone can read")
            ->type_name("FILE");
    const CLI::Option* const connections =
        command
            .add_option("--max-connections", options.server.doors.max_connections,
                        "Of these at a time, at most")
            ->transform(whole_between(1, 1'000'000))
            ->capture_default_str();
    const CLI::Option* const idle =
        command
            .add_option_function<double>(
                "--idle-timeout",
                [&options](double seconds) {
                    options.server.doors.idle_timeout =
                        std::chrono::nanoseconds{static_cast<std::int64_t>(seconds * 1e9)};
                },
                "Seconds after which one that asks for nothing is closed; default: never")
            ->transform(fraction_between(0.001, 1e6));
    CLI::Option* const certificate =
        command
            .add_option("--tls-cert", options.tls_cert,
                        "These speak TLS: a certificate, and those that vouch for it (PEM)")
            ->type_name("FILE");
    CLI::Option* const key = command
                                 .add_option("--tls-key", options.tls_key,
                                             "Its key (PEM): a file that you alone can read")
                                 ->type_name("FILE");
    certificate->needs(key);
    key->needs(certificate);
    return {password, connections, idle, certificate, key};
}

void add_serve(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "serve", "Serve a store that lies in memory, until SIGINT, SIGTERM or a permitted EXIT");
    auto options = std::make_shared<KvServeOptions>();
    auto permitted = std::make_shared<std::vector<std::string>>();
    const CLI::Option* const listen =
        command->add_option("--listen", options->address, "host:port or unix:PATH")
            ->type_name("ADDRESS")
            ->capture_default_str();
    const std::shared_ptr<std::uint16_t> port =
        add_port(*command, "To listen on, if --listen is a host alone, or 127.0.0.1 without it");
    command
        ->add_option("--memory", options->server.store.memory_bytes,
                     "For items and their table, as in 512m or 4g")
        ->transform(bytes_between(kv::least_memory, std::uint64_t{1} << 40))
        ->capture_default_str();
    add_choice(*command, "--when-full", {"refuse", "evict"},
               "refuse (default): new items are not taken; evict: the least recently used go",
               [options](const std::string& word) {
                   options->server.store.when_full =
                       word == "evict" ? kv::WhenFull::evict : kv::WhenFull::refuse;
               });
    add_choice(*command, "--table", {"cuckoo", "thesis"},
               "cuckoo (default), or thesis: the 1,024 buckets of work 002",
               [options](const std::string& word) {
                   options->server.store.table =
                       word == "thesis" ? kv::TableKind::thesis : kv::TableKind::cuckoo;
               });
    add_wait(*command, options->server.messages.wait);
    command->add_flag_callback(
        "--blocking", [options] { options->server.messages.wait = base::WaitPolicy::blocking(); },
        "As --wait block");
    add_log_levels(*command);
    command
        ->add_option("--threads", options->server.threads.count,
                     "That serve, each its own clients; 1 to 256")
        ->transform(whole_between(1, 256))
        ->capture_default_str();
    command
        ->add_option("--cores", options->server.threads.cores,
                     "Processors to pin them to, as in 0,2")
        ->transform(whole_between(0, std::numeric_limits<int>::max()))
        ->delimiter(',')
        ->type_name("NUMBERS");
    command->add_option("--clients", options->server.messages.max_clients, "At a time, at most")
        ->transform(whole_between(1, 65536))
        ->capture_default_str();
    add_choice(*command, "--polling", {"auto", "flag", "dense"},
               "How it finds who has written; default: auto (docs/messaging.md)",
               [options](const std::string& word) {
                   options->server.messages.polling = word == "flag" ? message::Polling::flag
                                                      : word == "dense"
                                                          ? message::Polling::dense
                                                          : message::Polling::automatic;
               });
    command
        ->add_option("--permit", *permitted,
                     "What clients may ask for that concerns all: dump, reset, exit")
        ->delimiter(',')
        ->check(CLI::IsMember(std::vector<std::string>{"dump", "reset", "exit"}));
    command
        ->add_option("--metrics", options->metrics,
                     "Show counts for Prometheus there by HTTP, as in 127.0.0.1:9400")
        ->type_name("ADDRESS");
    command
        ->add_option("--snapshot", options->snapshot,
                     "Begin with the items in that file, if it is there, and write it at the end")
        ->type_name("FILE");
    command
        ->add_option("--snapshot-every", options->snapshot_every,
                     "And write it every so many seconds, while clients are served")
        ->transform(fraction_between(0.001, 1e6))
        ->needs("--snapshot");
    const std::vector<const CLI::Option*> of_doors = add_doors(*command, *options);
    add_posting(*command, options->server.messages.tuning.posting);
    add_transports(*command, options->server.messages.transports);
    add_rdma(*command, [options](connect::Transport transport) {
        options->server.messages.transports = transport;
    });
    command->add_flag_callback(
        "--trust-clients",
        [options] { options->server.messages.protection = message::Protection::trusted; },
        "They may reach each other's memory in the server; --transport ud needs that");
    add_device_and_secret(*command, options->device, options->secret_file);
    command->final_callback([=, &chosen] {
        if (*port != 0) {
            if (listen->count() == 0) options->address.clear();
            give_port(options->address, *port);
        }
        refuse_if_wrong([&] { (void)connect::Address::parse(options->address); });
        if (!options->metrics.empty()) {
            refuse_if_wrong([&] { (void)connect::Address::parse(options->metrics); });
        }
        for (const std::string& door : {options->resp, options->memcached}) {
            if (!door.empty()) refuse_if_wrong([&] { (void)connect::Address::parse(door); });
        }
        for (const CLI::Option* const option : of_doors) {
            if (option->count() != 0 && options->resp.empty() && options->memcached.empty()) {
                throw CLI::RequiresError{option->get_name(), "--resp or --memcached"};
            }
        }
        for (const std::string& word : *permitted) {
            options->server.permitted.dump |= word == "dump";
            options->server.permitted.reset |= word == "reset";
            options->server.permitted.exit |= word == "exit";
        }
        chosen = [options] { return run_kv_serve(*options); };
    });
}

/// What one of the words of ask.hpp takes besides a server.
struct Asked {
    const char* word;
    const char* help;
    bool key = false;
    bool value = false;
    bool conditions = false;
};
constexpr Asked asked[] = {
    {"get", "Write the value of a key to standard output", true, false, false},
    {"set", "Set a key to a value, or to what standard input says", true, true, true},
    {"del", "Remove a key", true, false, true},
    {"exists", "Say OK, with exit status 0, if there is such a key", true, false, false},
    {"ping", "Say OK if the server answers", false, false, false},
    {"stats", "Show what the server counts", false, false, false},
    {"dump", "Show every key and value, if the server permits it; the timeout is for each MiB",
     false, false, false},
    {"reset", "Remove every key, if the server permits it", false, false, false},
    {"exit", "End the server, if it permits it", false, false, false},
    {"setopt",
     "Set an option of the running server: sweep, how many items it looks at to find "
     "those whose time is over",
     true, true, false},
};

void add_asked(CLI::App& parent, const Asked& one, Action& chosen) {
    auto* command = parent.add_subcommand(one.word, one.help);
    auto options = std::make_shared<KvAskOptions>();
    const std::string word = one.word;
    if (one.key) {
        command->add_option("key", options->key, "1 to 65536 bytes")->required();
    }
    if (one.value) command->add_option("value", options->value, "At most 1 MiB");
    if (one.conditions) {
        command
            ->add_option("--if-version", options->if_version,
                         "Only if the item has this version; 0: only if there is none")
            ->transform(whole_between(0, std::numeric_limits<kv::Version>::max()));
    }
    if (word == "set") {
        command
            ->add_option("--expires", options->expires_seconds,
                         "Seconds that the item is kept; 0 or less: not at all, so that the former "
                         "one is gone; a century or not given: for ever")
            ->transform(fraction_between(-9.0e9, 9.0e9));
    }
    if (word == "set" || word == "get") {
        command->add_flag("--show-version", options->show_version,
                          "Write the item's version to standard error");
    }
    if (word == "stats") add_json(*command, options->json);
    add_server(*command, options->server, "host:port or unix:PATH; default: 127.0.0.1:7400");
    if (one.key && word != "setopt") {
        command
            ->add_option("--servers", options->servers,
                         "Several, of which the key says which one is asked; NAME=ADDRESS where "
                         "memcached's clients share them and know them by NAME")
            ->delimiter(',')
            ->type_name("ADDRESSES")
            ->excludes("--server");
    }
    command
        ->add_option_function<double>(
            "--timeout",
            [options](double seconds) {
                options->timeout =
                    std::chrono::nanoseconds{static_cast<std::int64_t>(seconds * 1e9)};
            },
            "Seconds to wait for the server and its answer; default: 5")
        ->transform(fraction_between(0.001, 1e6));
    add_transport(*command, options->transport);
    add_transfers(*command, options->requests, options->answers);
    add_fallback(*command, options->fallback);
    add_device_and_secret(*command, options->device, options->secret_file);
    command->final_callback([=, &chosen] {
        refuse_if_wrong([&] {
            if (!options->servers.empty()) {
                options->server = server_of(options->servers, options->key);
            }
            (void)connect::Address::parse(options->server);
        });
        chosen = [word, options] { return run_kv_ask(word, *options); };
    });
}

void add_bench(CLI::App& parent, Action& chosen) {
    auto* command = parent.add_subcommand(
        "bench", "Get and set random keys as fast as the answers come, and tell how fast that was");
    auto options = std::make_shared<KvBenchOptions>();
    workload::KvLoad& load = options->load;
    // Behind the commas, as work 002's benchmark calls it (appendix A.1.2).
    command
        ->add_option("--server,-a", options->server,
                     "host:port or unix:PATH of a server; without it, one is started for this")
        ->type_name("ADDRESS");
    const std::shared_ptr<std::uint16_t> port =
        add_port(*command, "Of a server that is given as a host alone");
    command->add_option("--clients,-n", load.clients, "How many; each in a thread of its own")
        ->transform(whole_between(1, 4096))
        ->capture_default_str();
    command
        ->add_option("--threads", load.threads,
                     "So many drive the clients, without a sleep; default: 0, one for each client")
        ->transform(whole_between(0, 256));
    command->add_option("--outstanding", load.outstanding, "Requests of a client at a time")
        ->transform(whole_between(1, 4096))
        ->capture_default_str();
    command
        ->add_option_function<double>(
            "--seconds",
            [options](double seconds) {
                options->load.duration =
                    std::chrono::nanoseconds{static_cast<std::int64_t>(seconds * 1e9)};
            },
            "How long; default: 2")
        ->transform(fraction_between(0.001, 1e6));
    command
        ->add_option("--operations,--ops,-o", load.operations,
                     "Of all clients together, in place of a time")
        ->transform(whole_between(1, std::uint64_t{1} << 40));
    command
        ->add_option("--rate", load.offered_per_second,
                     "Requests that all clients together offer in a second, whatever the answers "
                     "do; latencies count from when each was due. Default: as fast as answers come")
        ->transform(fraction_between(0.001, 1e9));
    command->add_option("--keys", load.keys, "Different keys")
        ->transform(whole_between(1, std::uint64_t{1} << 40))
        ->capture_default_str();
    command->add_option("--key-bytes", load.key_bytes)
        ->transform(whole_between(8, kv::longest_key))
        ->capture_default_str();
    command->add_option("--value-bytes", load.value_bytes)
        ->transform(whole_between(0, kv::longest_value))
        ->capture_default_str();
    command->add_option("--get-percent", load.get_percent, "GETs of all requests; the others SET")
        ->transform(whole_between(0, 100))
        ->capture_default_str();
    load.client.wait.moves = true;  // the threads are this program's own
    add_wait(*command, load.client.wait);
    add_posting(*command, options->posting);
    command->add_flag_callback(
        "--blocking", [options] { options->load.client.wait = base::WaitPolicy::blocking(); },
        "As --wait block");
    CLI::Option* const save =
        command
            ->add_option("--save", options->save,
                         "Write every operation into this file, as CSV: its client, GET or SET, "
                         "when it began and ended. Takes 16 bytes of memory for each")
            ->type_name("FILE");
    command
        ->add_flag_callback(
            "--no-save", [] {}, "Nothing is saved without --save: for those who are used to it")
        ->excludes(save);
    add_log_levels(*command);
    command->add_flag_callback(
        "--no-fill", [options] { options->load.fill = false; }, "Do not set every key first");
    add_transport(*command, load.client.transport);
    add_transfers(*command, load.client.requests, load.client.answers);
    add_rdma(*command, [options](connect::Transport transport) {
        options->load.client.transport = transport;
    });
    add_json(*command, options->json);
    add_device_and_secret(*command, options->device, options->secret_file);
    command->final_callback([=, &chosen] {
        if (*port != 0) give_port(options->server, *port);
        if (!options->server.empty()) {
            refuse_if_wrong([&] { (void)connect::Address::parse(options->server); });
        }
        chosen = [options] { return run_kv_bench(*options); };
    });
}

}  // namespace

void add_kv(CLI::App& program, Action& chosen) {
    auto* command = program.add_subcommand("kv", "A key-value server, and its clients");
    command->require_subcommand(1);
    add_serve(*command, chosen);
    for (const Asked& one : asked) add_asked(*command, one, chosen);
    add_bench(*command, chosen);
}

}  // namespace millrace::tools
