// `millrace kv` as a user runs it: a server and the words that ask it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/child_process.hpp"
#include "support/command.hpp"
#include "support/free_port.hpp"
#include "tools/kv_command.hpp"

namespace {

using millrace::test::ChildProcess;
using millrace::test::CommandOutcome;
using millrace::test::Kv;
using millrace::test::run_command;
using millrace::test::run_line;
using testing::HasSubstr;
using testing::Not;

TEST_F(Kv, SetsGetsAndRemoves) {
    serve();
    EXPECT_TRUE(ask({"set", "name", "a value"}).exit.success());
    const CommandOutcome got = ask({"get", "name"});
    EXPECT_TRUE(got.exit.success());
    EXPECT_EQ(got.text, "a value");
    EXPECT_EQ(ask({"exists", "name"}).text, "OK\n");
    EXPECT_EQ(ask({"ping"}).text, "OK\n");
    EXPECT_TRUE(ask({"del", "name"}).exit.success());
    const CommandOutcome gone = ask({"get", "name"});
    EXPECT_TRUE(gone.exit.exited_with(1));
    EXPECT_EQ(gone.text, "millrace kv get: KEY_ERROR, there is no such key\n");
}

TEST_F(Kv, AsksTheServerOfSeveralThatHasTheKey) {
    std::vector<millrace::test::ChildProcess> servers;
    std::string all;
    std::string named;
    for (const char* const name : {"a", "b", "c"}) {
        const std::string address = "unix:" + folder_.path(name);
        servers.push_back(millrace::test::ChildProcess::start_program(
            {MILLRACE_COMMAND, "kv", "serve", "--listen", address, "--transport", "tcp"}));
        ASSERT_EQ(servers.back().read_line(), "listening on " + address);
        all += (all.empty() ? "" : ",") + address;
        // As kv::Cluster would have them without names.
        named = address + '=' + address + (named.empty() ? "" : ",") + named;
    }
    const auto by = [&](std::vector<std::string> words, const std::string& list) {
        words.insert(words.begin(), "kv");
        words.insert(words.end(), {"--servers", list, "--transport", "tcp"});
        return run_command(words);
    };
    for (int i = 0; i < 12; ++i) {
        const std::string key = "key:" + std::to_string(i);
        ASSERT_TRUE(by({"set", key, key}, all).exit.success());
        // Whatever their order.
        ASSERT_EQ(by({"get", key}, named).text, key);
    }
    std::size_t items = 0;
    for (const char* const name : {"a", "b", "c"}) {
        const std::string stats = run_command({"kv", "stats", "--transport", "tcp", "--server",
                                               "unix:" + folder_.path(name)})
                                      .text;
        const std::size_t held = std::stoul(stats.substr(stats.find(' ') + 1));
        EXPECT_LT(held, 12U) << stats;
        items += held;
    }
    EXPECT_EQ(items, 12U);
    EXPECT_TRUE(by({"get", "k"}, "nowhere").exit.exited_with(2));
    EXPECT_TRUE(by({"get", "k"}, "unix:a,unix:a").exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "get", "k", "--servers", all, "--server", address_})
                    .exit.exited_with(2));
}

TEST_F(Kv, EndsTheLineOfAValueOnATerminalAlone) {
    serve();
    ASSERT_TRUE(ask({"set", "name", "a value"}).exit.success());
    const CommandOutcome shown = run_line(
        "python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' \"$0\" kv get name --server " +
        address_ + " < /dev/null");
    EXPECT_EQ(shown.text, "a value\r\n");
    EXPECT_EQ(ask({"get", "name"}).text, "a value");
}

TEST_F(Kv, GoesByTheTransportsThatItWasToldTo) {
    serve({"--transport", "rc,tcp"});
    EXPECT_TRUE(ask({"set", "name", "a value", "--transport", "tcp"}).exit.success());
    EXPECT_EQ(ask({"get", "name"}).text, "a value");
    EXPECT_EQ(ask({"get", "name", "--transport", "tcp"}).text, "a value");
    const CommandOutcome bench = ask({"bench", "--transport", "tcp", "--operations", "500",
                                      "--keys", "50", "--outstanding", "8", "--json"});
    EXPECT_TRUE(bench.exit.success()) << bench.text;
    EXPECT_EQ(nlohmann::json::parse(bench.text)["transport"], "tcp");
    EXPECT_FALSE(ask({"ping", "--transport", "pigeon"}).exit.success());
}

TEST_F(Kv, SaysWhereItsBenchMeasuresTheWire) {
    const std::vector<std::string> bench{"kv", "bench", "--operations", "50", "--keys", "50"};
    EXPECT_THAT(run_command(bench).text, Not(HasSubstr("over the wire")));
    EXPECT_THAT(run_command(bench, {"MILLRACE_WIRE=127.0.0.2,always"}).text,
                HasSubstr("over the wire: RoCEv2, from UDP 127.0.0.2 port "));
}

TEST_F(Kv, RefusesWhoComesByAnotherTransport) {
    serve({"--transport", "tcp"});
    const CommandOutcome refused = ask({"ping"});
    EXPECT_TRUE(refused.exit.exited_with(1));
    EXPECT_NE(refused.text.find("tcp"), std::string::npos) << refused.text;
    EXPECT_EQ(ask({"ping", "--transport", "tcp"}).text, "OK\n");
}

TEST_F(Kv, TakesAValueFromStandardInput) {
    serve();
    EXPECT_TRUE(
        run_line("printf 'from\\0a pipe' | \"$0\" kv set k --server " + address_).exit.success());
    EXPECT_EQ(ask({"get", "k"}).text, std::string("from\0a pipe", 11));
    const CommandOutcome long_one =
        run_line("head -c 1048577 /dev/zero | \"$0\" kv set k --server " + address_ + " 2>&1");
    EXPECT_TRUE(long_one.exit.exited_with(1));
    EXPECT_EQ(long_one.text, "millrace kv set: STORE_ERROR, a value has at most 1048576 bytes\n");
}

TEST_F(Kv, ServesByEveryTransportWaitAndTable) {
    for (const std::string table : {"cuckoo", "thesis"}) {
        for (const std::string wait : {"poll", "block", "default"}) {
            ASSERT_NO_FATAL_FAILURE(serve({"--transport", "rc,uc,ud,tcp", "--trust-clients",
                                           "--wait", wait, "--table", table, "--memory", "4g"}));
            for (const std::string transport : {"rc", "uc", "ud", "tcp"}) {
                EXPECT_TRUE(ask({"set", "by", transport, "--transport", transport}).exit.success());
                EXPECT_EQ(ask({"get", "by"}).text, transport);
            }
            const CommandOutcome loaded =
                ask({"bench", "--clients", "2", "--operations", "200", "--keys", "20",
                     "--transport", "ud", "--wait", wait, "--get-percent", "94", "--json"});
            ASSERT_TRUE(loaded.exit.success()) << loaded.text;
            EXPECT_EQ(nlohmann::json::parse(loaded.text)["get_percent"], 94);
            server_->send_signal(SIGTERM);
            const std::string said = server_->read_all();
            EXPECT_TRUE(server_->wait().success());
            EXPECT_NE(said.find(table == "thesis" ? "table of work 002" : "table libcuckoo"),
                      std::string::npos)
                << said;
            EXPECT_NE(said.find("at most 4294967296 bytes"), std::string::npos) << said;
        }
    }
}

// Appendix A.1 of work 002: bin/kv_server and bin/benchmark.
TEST_F(Kv, IsCalledAsThePublishedProgramsAre) {
    std::optional<ChildProcess> server;
    std::string port;
    for (int attempt = 0; attempt != 10; ++attempt) {
        port = std::to_string(millrace::test::free_port());
        server.emplace(ChildProcess::start_program(
            {MILLRACE_COMMAND, "kv", "serve", "-r", "rc", "-p", port, "--blocking"}));
        if (server->read_line() == "listening on 127.0.0.1:" + port) break;
    }
    const std::string file = folder_.path("operations.csv");
    const CommandOutcome bench =
        run_command({"kv", "bench", "-a", "127.0.0.1", "-p", port, "-r", "rc", "-n", "2", "-o",
                     "100", "--keys", "10", "--blocking", "--save", file});
    ASSERT_TRUE(bench.exit.success()) << bench.text;
    std::istringstream lines{folder_.content("operations.csv")};
    std::string line;
    std::getline(lines, line);
    EXPECT_EQ(line, "client,command,begin_us,end_us");
    std::map<std::string, int> of_client;
    while (std::getline(lines, line)) {
        std::smatch fields;
        ASSERT_TRUE(std::regex_match(line, fields,
                                     std::regex{R"((\d+),(GET|SET),(\d+\.\d{3}),(\d+\.\d{3}))"}))
            << line;
        ++of_client[fields[1]];
        EXPECT_GE(std::stod(fields[4]), std::stod(fields[3])) << line;
    }
    EXPECT_EQ(of_client, (std::map<std::string, int>{{"0", 50}, {"1", 50}}));
    const CommandOutcome refused =
        run_command({"kv", "serve", "--listen", "unix:/nowhere/kv", "-p", port});
    EXPECT_TRUE(refused.exit.exited_with(2));
    EXPECT_THAT(refused.text, HasSubstr("--port"));
}

TEST_F(Kv, ForgetsWhatExpires) {
    serve();
    ASSERT_TRUE(ask({"set", "goes", "v", "--expires", "0.001"}).exit.success());
    ASSERT_TRUE(ask({"set", "stays", "v", "--expires", "1000"}).exit.success());
    for (const char* none : {"0", "-1"}) {
        ASSERT_TRUE(ask({"set", "never", "there"}).exit.success());
        ASSERT_TRUE(ask({"set", "never", "v", "--expires", none}).exit.success());
        EXPECT_FALSE(ask({"get", "never"}).exit.success()) << none;
    }
    const auto is_over = std::chrono::steady_clock::now() + std::chrono::seconds{30};
    while (ask({"exists", "goes"}).exit.success()) {
        ASSERT_LT(std::chrono::steady_clock::now(), is_over);
    }
    EXPECT_EQ(ask({"exists", "goes"}).text,
              "millrace kv exists: KEY_ERROR, there is no such key\n");
    EXPECT_EQ(ask({"get", "stays"}).text, "v");
}

TEST_F(Kv, SetsOnlyAVersion) {
    serve();
    EXPECT_TRUE(ask({"set", "k", "1", "--if-version", "0"}).exit.success());
    const CommandOutcome conflict = ask({"set", "k", "2", "--if-version", "0"});
    EXPECT_TRUE(conflict.exit.exited_with(1));
    EXPECT_NE(conflict.text.find("CONFLICT, the item has version "), std::string::npos)
        << conflict.text;
}

TEST_F(Kv, CountsWhatItServes) {
    serve();
    EXPECT_TRUE(ask({"set", "k", "v"}).exit.success());
    const CommandOutcome stats = ask({"stats", "--json"});
    const auto document = nlohmann::json::parse(stats.text);
    EXPECT_EQ(document["items"], 1);
    EXPECT_EQ(document["sets"], 1);
    EXPECT_EQ(document["set_timed"], 1);
    EXPECT_GT(document["set_p50_ns"], 0);
    EXPECT_EQ(document["get_timed"], 0);
    EXPECT_NE(ask({"stats"}).text.find("items 1\n"), std::string::npos);
}

TEST_F(Kv, PermitsOnlyWhatItWasToldTo) {
    serve();
    const CommandOutcome denied = ask({"reset"});
    EXPECT_TRUE(denied.exit.exited_with(1));
    EXPECT_EQ(denied.text,
              "millrace kv reset: DENIED, the server was not started with --permit reset\n");
    EXPECT_TRUE(ask({"exit"}).exit.exited_with(1));
    EXPECT_TRUE(ask({"dump"}).exit.exited_with(1));
}

TEST_F(Kv, DumpsResetsAndEndsWithPermission) {
    serve({"--permit", "dump,reset,exit"});
    EXPECT_TRUE(ask({"set", "k", "v"}).exit.success());
    EXPECT_EQ(ask({"dump"}).text, "k\tv\n");
    EXPECT_TRUE(ask({"reset"}).exit.success());
    EXPECT_EQ(ask({"dump"}).text, "");
    EXPECT_TRUE(ask({"exit"}).exit.success());
    EXPECT_TRUE(server_->wait().success());
}

TEST_F(Kv, DumpsWhatIsLongerThanOnePage) {
    serve({"--permit", "dump"});
    // 5 MiB, by requests that travel as HERD's.
    const CommandOutcome filled =
        ask({"bench", "--keys", "50", "--value-bytes", "100000", "--operations", "1", "--requests",
             "write", "--answers", "send"});
    ASSERT_TRUE(filled.exit.success()) << filled.text;
    EXPECT_NE(filled.text.find("by rc, requests by write and answers by send: 1 clients"),
              std::string::npos)
        << filled.text;
    const CommandOutcome dumped = ask({"dump", "--answers", "send"});
    EXPECT_TRUE(dumped.exit.success());
    EXPECT_EQ(std::count(dumped.text.begin(), dumped.text.end(), '\n'), 50);
    EXPECT_GT(dumped.text.size(), std::size_t{2} * 50 * 100'000) << "two digits for each byte";
}

TEST_F(Kv, RefusesSendsWhereThereIsNoChoice) {
    serve({"--transport", "rc,uc"});
    EXPECT_TRUE(ask({"set", "k", "v", "--requests", "send", "--answers", "send"}).exit.success());
    EXPECT_EQ(ask({"get", "k", "--answers", "send"}).text, "v");
    const CommandOutcome outcome = ask({"get", "k", "--transport", "uc", "--answers", "send"});
    EXPECT_TRUE(outcome.exit.exited_with(1));
    EXPECT_NE(outcome.text.find("answers by SEND over uc"), std::string::npos) << outcome.text;
    EXPECT_TRUE(ask({"get", "k", "--answers", "read"}).exit.exited_with(2));
}

TEST_F(Kv, DrainsWhenItIsTerminated) {
    serve();
    EXPECT_TRUE(ask({"set", "k", "v"}).exit.success());
    server_->send_signal(SIGTERM);
    const std::string said = server_->read_all();
    EXPECT_TRUE(server_->wait().success());
    EXPECT_NE(said.find("served 1 requests of 1 clients; 1 items"), std::string::npos) << said;
}

TEST_F(Kv, DrainsWhenItIsTerminatedUnderLoad) {
    for (const std::string transport : {"rc", "uc", "ud", "tcp"}) {
        serve({"--transport", transport, "--trust-clients"});
        ASSERT_TRUE(ask({"set", "k", "v", "--transport", transport}).exit.success());
        ChildProcess load = ChildProcess::start_program(
            {"/bin/sh", "-c",
             "exec \"$0\" kv bench --server " + address_ + " --transport " + transport +
                 " --clients 2 --outstanding 8 --keys 100 --seconds 60 2>&1 < /dev/null",
             MILLRACE_COMMAND},
            {"COLUMNS=1000"});
        const auto is_late = std::chrono::steady_clock::now() + std::chrono::seconds{30};
        // It begins with that when every key is set.
        const auto gets = [&] {
            const CommandOutcome stats = ask({"stats", "--json", "--transport", transport});
            return nlohmann::json::parse(stats.text).at("gets").get<std::uint64_t>();
        };
        while (gets() == 0) ASSERT_LT(std::chrono::steady_clock::now(), is_late);
        server_->send_signal(SIGTERM);
        const std::string said = server_->read_all();
        EXPECT_TRUE(server_->wait().success());
        EXPECT_NE(said.find("; 101 items"), std::string::npos) << said;
        const std::string told = load.read_all();
        EXPECT_TRUE(load.wait().exited_with(1)) << told;
        EXPECT_NE(told.find("see why the server ended"), std::string::npos) << told;
    }
}

TEST_F(Kv, ServesWhoKnowsTheSecretAlone) {
    const std::string secret = folder_.path("secret");
    ASSERT_TRUE(run_line("umask 077; head -c 32 /dev/urandom | base64 > " + secret).exit.success());
    serve({"--secret-file", secret});
    EXPECT_TRUE(ask({"set", "k", "v", "--secret-file", secret}).exit.success());
    EXPECT_EQ(ask({"get", "k", "--secret-file", secret}).text, "v");
    const CommandOutcome outcome = ask({"get", "k"});
    EXPECT_TRUE(outcome.exit.exited_with(1));
    EXPECT_NE(outcome.text.find("secret"), std::string::npos) << outcome.text;
}

TEST_F(Kv, SaysWhereNobodyListens) {
    const CommandOutcome outcome = ask({"get", "k", "--timeout", "0.1"});
    EXPECT_TRUE(outcome.exit.exited_with(1));
    EXPECT_NE(outcome.text.find(folder_.path("kv")), std::string::npos) << outcome.text;
}

TEST_F(Kv, IsLoadedByAsManyThreadsAsTheBenchWasToldTo) {
    serve({});
    for (const std::vector<std::string>& how : {std::vector<std::string>{"--operations", "500"},
                                                {"--rate", "4000", "--seconds", "0.1"}}) {
        std::vector<std::string> words{"bench", "--clients",     "20", "--threads",
                                       "2",     "--outstanding", "3",  "--keys",
                                       "50",    "--json"};
        words.insert(words.end(), how.begin(), how.end());
        const CommandOutcome loaded = ask(words);
        ASSERT_TRUE(loaded.exit.success()) << loaded.text;
        const auto told = nlohmann::json::parse(loaded.text);
        EXPECT_EQ(told["per_client"].size(), 20U);
        EXPECT_EQ(told["threads"], 2);
        if (how[0] == "--operations") {
            EXPECT_EQ(told["operations"], 500);
        }
        for (const auto& calls : told["per_client"]) EXPECT_GT(calls, 0) << told;
    }
    EXPECT_FALSE(ask({"bench", "--clients", "2", "--threads", "3"}).exit.success());
}

TEST_F(Kv, IsMeasuredByYcsb) {
    serve({"--transport", "tcp"});
    const std::string file = folder_.path("ycsb.json");
    std::vector<std::string> words{"bench",      "ycsb", "--server",  address_, "--over",    "unix",
                                   "--workload", "d,E",  "--clients", "2",      "--repeats", "1",
                                   "--seconds",  "0.3",  "--records", "50",     "--json",    file};
    const CommandOutcome outcome = run_command(words);
    ASSERT_TRUE(outcome.exit.success()) << outcome.text;
    const auto document = nlohmann::json::parse(folder_.content("ycsb.json"));
    std::size_t scans = 0;
    for (const auto& figure : document["figures"]) {
        const double value = figure["series"][0]["points"][0]["median"];
        if (figure["quantity"] == "failed_operations") {
            EXPECT_EQ(value, 0) << figure;
        } else if (figure["quantity"] == "operations_per_second") {
            EXPECT_GT(value, 0) << figure;
        }
        scans += figure["id"] == "E scan, 2" ? 1 : 0;
    }
    EXPECT_EQ(scans, 1U);
    EXPECT_TRUE(document["findings"].empty()) << "the work's figures have servers of their own";
    const auto where = document["machine"]["measured"].get<std::string>();
    EXPECT_NE(where.find(address_), std::string::npos) << where;
    // Its records are there now.
    words.emplace_back("--no-load");
    EXPECT_TRUE(run_command(words).exit.success());
    ASSERT_TRUE(ask({"get", "user6284781860667377211", "--transport", "tcp"}).exit.success());
    server_.reset();
    const CommandOutcome alone = run_command(words);
    EXPECT_TRUE(alone.exit.exited_with(1)) << alone.text;
    EXPECT_EQ(alone.text.find("not measured"), std::string::npos)
        << "it says once that nobody is there: " << alone.text;
}

TEST_F(Kv, GreetsInThreeLines) {
    serve({"--when-full", "evict"});
    EXPECT_NE(server_->read_line().value_or("").find("1024 clients, by rc"), std::string::npos);
    EXPECT_EQ(server_->read_line(),
              "at most 1073741824 bytes, table libcuckoo; when full, items long unused go");
    server_->send_signal(SIGTERM);
    const std::string said = server_->read_all();
    EXPECT_TRUE(said.starts_with("served 0 requests")) << said;
    EXPECT_TRUE(server_->wait().success());
}

TEST_F(Kv, IsServedByAsManyThreadsAsItWasToldTo) {
    serve({"--threads", "3", "--transport", "rc,tcp"});
    EXPECT_TRUE(ask({"set", "name", "a value"}).exit.success());
    const CommandOutcome loaded = ask({"bench", "--clients", "6", "--operations", "600", "--keys",
                                       "50", "--transport", "tcp", "--json"});
    ASSERT_TRUE(loaded.exit.success()) << loaded.text;
    EXPECT_EQ(nlohmann::json::parse(loaded.text)["operations"], 600);
    EXPECT_EQ(ask({"get", "name"}).text, "a value");
    server_->send_signal(SIGTERM);
    std::string said;
    while (const auto line = server_->read_line()) said += *line + '\n';
    EXPECT_NE(said.find("3 message servers, a thread each"), std::string::npos) << said;
    EXPECT_NE(said.find("requests of "), std::string::npos) << "of all threads: " << said;
    EXPECT_TRUE(server_->wait().success());
}

/// What Prometheus would find wrong with a text of its format 0.0.4. Empty: nothing.
std::string wrong_with_metrics(const std::string& text) {
    const std::regex comment{"# (HELP|TYPE) ([a-z_]+) (.+)"};
    const std::regex sample{R"re(([a-z_]+)(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? ([0-9.e+-]+))re"};
    std::map<std::string, std::string> types;
    std::set<std::string> helped;
    std::set<std::string> series;
    std::map<std::string, double> quantiles;  // of a summary's series, the last one
    std::istringstream lines{text};
    for (std::string line; std::getline(lines, line);) {
        std::smatch part;
        if (std::regex_match(line, part, comment)) {
            const bool is_type = part[1] == "TYPE";
            const bool is_new =
                is_type ? types.emplace(part[2], part[3]).second : helped.insert(part[2]).second;
            if (!is_new) return "twice: " + line;
            continue;
        }
        if (!std::regex_match(line, part, sample)) return "no sample: " + line;
        std::string name = part[1];
        for (const std::string end : {"_sum", "_count"}) {
            const std::string stem =
                name.substr(0, name.size() - std::min(end.size(), name.size()));
            if (name.ends_with(end) && types[stem] == "summary") name = stem;
        }
        if (types[name].empty() || !helped.contains(name)) return "of no type: " + line;
        if (types[name] == "counter" && !name.ends_with("_total")) return "a counter: " + line;
        if (!series.insert(part[1].str() + part[2].str()).second) return "again: " + line;
        const std::string labels = part[2];
        const std::size_t quantile = labels.find(",quantile=");
        if (quantile != std::string::npos) {
            double& last = quantiles[name + labels.substr(0, quantile)];
            if (std::stod(part[4]) < last) return "falls: " + line;
            last = std::stod(part[4]);
        }
    }
    return {};
}

TEST_F(Kv, ShowsMetricsByHttp) {
    serve({"--threads", "2", "--metrics", "127.0.0.1:0"});
    const std::string shown = server_->read_line().value_or("");
    const std::string start = "metrics at ";
    ASSERT_TRUE(shown.starts_with(start + "http://127.0.0.1:")) << shown;
    const std::string url = shown.substr(start.size());
    EXPECT_TRUE(ask({"set", "name", "a value"}).exit.success());
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(ask({"get", "name"}).exit.success());
    EXPECT_FALSE(ask({"get", "other"}).exit.success());
    const auto fetch = [](const std::string& from, const char* method) {
        return run_line(std::string{"python3 -c 'import urllib.request, urllib.error\ntry:\n"
                                    " print(urllib.request.urlopen(urllib.request.Request(\""} +
                        from + "\", method=\"" + method +
                        "\")).read().decode())\nexcept urllib.error.HTTPError as e: print(e)'");
    };
    const CommandOutcome got = fetch(url, "GET");
    ASSERT_TRUE(got.exit.success()) << got.text;
    for (const char* line :
         {"# TYPE millrace_kv_requests_total counter\n",
          "millrace_kv_requests_total{command=\"get\"} 4\n",
          "millrace_kv_requests_total{command=\"set\"} 1\n",
          "millrace_kv_requests_total{command=\"dump\"} 0\n", "millrace_kv_hits_total 3\n",
          "millrace_kv_misses_total 1\n", "millrace_kv_items 1\n", "millrace_kv_item_bytes 11\n",
          "millrace_kv_evicted_total 0\n", "millrace_kv_clients_joined_total 5\n",
          "# TYPE millrace_kv_service_seconds summary\n",
          "millrace_kv_service_seconds_count{command=\"set\"} 1\n",
          "millrace_kv_service_seconds{command=\"del\",quantile=\"0.99\"} 0.000000000\n"}) {
        EXPECT_NE(got.text.find(line), std::string::npos) << line << got.text;
    }
    EXPECT_EQ(got.text.find("millrace_kv_service_seconds_sum{command=\"set\"} 0.000000000"),
              std::string::npos)
        << "the first request of a thread is timed, and takes time: " << got.text;
    EXPECT_EQ(wrong_with_metrics(got.text.substr(0, got.text.rfind("\n\n") + 1)), "");
    // Where it is installed, their own tool reads the same.
    const CommandOutcome checked = run_line(
        "if command -v promtool > /dev/null; then python3 -c 'import urllib.request\n"
        "print(urllib.request.urlopen(\"" +
        url + "\").read().decode(), end=\"\")' | promtool check metrics; fi");
    EXPECT_TRUE(checked.exit.success()) << checked.text;
    const std::string root = url.substr(0, url.size() - std::string{"/metrics"}.size());
    EXPECT_NE(fetch(root + "/", "GET").text.find("404"), std::string::npos);
    EXPECT_NE(fetch(url, "POST").text.find("405"), std::string::npos);
    // Nonsense ends with itself.
    const std::string port = root.substr(root.rfind(':') + 1);
    const CommandOutcome odd =
        run_line("python3 -c 'import socket\ns = socket.create_connection((\"127.0.0.1\", " + port +
                 "))\ns.sendall(b\"x\" * 9000)\ns.close()'");
    EXPECT_TRUE(odd.exit.success()) << odd.text;
    EXPECT_NE(fetch(url, "GET").text.find("millrace_kv_items 1\n"), std::string::npos);
    // Its address is taken now.
    const CommandOutcome taken =
        run_command({"kv", "serve", "--listen", "unix:" + folder_.path("other"), "--metrics",
                     "127.0.0.1:" + port});
    EXPECT_TRUE(taken.exit.exited_with(1));
    EXPECT_NE(taken.text.find("127.0.0.1:" + port), std::string::npos) << taken.text;
    server_->send_signal(SIGTERM);
    EXPECT_TRUE(server_->wait().success());
}

TEST_F(Kv, RefusesWrongWords) {
    EXPECT_TRUE(run_command({"kv", "serve", "--metrics", "nowhere"}).exit.exited_with(2));
    const CommandOutcome path = run_command(
        {"kv", "serve", "--listen", address_, "--metrics", "unix:" + folder_.path("metrics")});
    EXPECT_TRUE(path.exit.exited_with(1));
    EXPECT_NE(path.text.find("host:port"), std::string::npos) << path.text;
    EXPECT_TRUE(run_command({"kv", "serve", "--threads", "0"}).exit.exited_with(2));
    const CommandOutcome nowhere =
        run_command({"kv", "serve", "--listen", address_, "--cores", "100000"});
    EXPECT_TRUE(nowhere.exit.exited_with(1));
    EXPECT_NE(nowhere.text.find("core 100000"), std::string::npos) << nowhere.text;
    EXPECT_TRUE(run_command({"kv"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "fetch", "k"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "get"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "serve", "--memory", "much"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "serve", "--permit", "all"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "get", "k", "--server", "nowhere"}).exit.exited_with(2));
    const CommandOutcome small = run_command({"kv", "serve", "--memory", "1k"});
    EXPECT_TRUE(small.exit.exited_with(2));
    EXPECT_NE(small.text.find("memory"), std::string::npos) << small.text;
}

TEST_F(Kv, LoadsAServerAndTellsHowFastThatWas) {
    serve();
    const CommandOutcome outcome = ask({"bench", "--clients", "2", "--outstanding", "4",
                                        "--operations", "2000", "--keys", "100", "--json"});
    ASSERT_TRUE(outcome.exit.success()) << outcome.text;
    const auto document = nlohmann::json::parse(outcome.text);
    EXPECT_EQ(document["operations"], 2000);
    EXPECT_EQ(document["per_client"], (std::vector<int>{1000, 1000}));
    EXPECT_EQ(document["get"]["count"].get<int>() + document["set"]["count"].get<int>(), 2000);
    EXPECT_EQ(document["hits"], document["get"]["count"]) << "every key was set before";
    EXPECT_GT(document["operations_per_second"], 0);
}

TEST_F(Kv, OffersAtARateWhatItWouldOfferWhateverTheAnswersDo) {
    serve({"--no-inline"});
    const auto operations_with = [&](const std::string& outstanding, const std::string& wait) {
        const CommandOutcome outcome =
            ask({"bench", "--clients", "3", "--rate", "3000", "--seconds", "0.2", "--keys", "50",
                 "--outstanding", outstanding, "--wait", wait, "--json"});
        EXPECT_TRUE(outcome.exit.success()) << outcome.text;
        const auto document = nlohmann::json::parse(outcome.text);
        EXPECT_EQ(document["offered_per_second"], 3000);
        return document["per_client"].get<std::vector<int>>();
    };
    const std::vector<int> offered = operations_with("1", "poll");
    ASSERT_EQ(offered.size(), 3U);
    EXPECT_GT(offered[0], 0);
    EXPECT_EQ(operations_with("1", "block"), offered);
    EXPECT_EQ(operations_with("8", "default"), offered);
    EXPECT_FALSE(ask({"bench", "--rate", "10", "--operations", "5"}).exit.success());
}

TEST_F(Kv, PostsByPacketsAsItWasTold) {
    // Values of several packets.
    const std::vector<std::vector<std::string>> habits{{}, {"--no-inline"}};
    for (const std::vector<std::string>& chosen : habits) {
        for (const std::string transport : {"uc", "ud"}) {
            std::vector<std::string> words{"kv",
                                           "bench",
                                           "--transport",
                                           transport,
                                           "--keys",
                                           "20",
                                           "--operations",
                                           "300",
                                           "--value-bytes",
                                           "9000",
                                           "--clients",
                                           "2",
                                           "--outstanding",
                                           "8",
                                           "--json"};
            words.insert(words.end(), chosen.begin(), chosen.end());
            const CommandOutcome outcome = run_command(words);
            ASSERT_TRUE(outcome.exit.success()) << outcome.text;
            const auto document = nlohmann::json::parse(outcome.text);
            EXPECT_EQ(document["operations"], 300);
            EXPECT_EQ(document["hits"], document["get"]["count"]);
        }
    }
}

TEST_F(Kv, UnderstandsTheOptionsOfTheWorksBenchmark) {
    // At a port that the system chose.
    server_.emplace(ChildProcess::start_program(
        {MILLRACE_COMMAND, "kv", "serve", "--listen", "127.0.0.1:0", "--transport", "uc,tcp"}));
    const std::string line = server_->read_line().value_or("");
    const std::string port = line.substr(line.rfind(':') + 1);
    const CommandOutcome outcome =
        run_command({"kv", "bench", "-a", "127.0.0.1", "-p", port, "-r", "uc", "-n", "3", "-o",
                     "300", "--blocking", "--no-save", "--keys", "20", "--json"});
    ASSERT_TRUE(outcome.exit.success()) << outcome.text;
    const auto document = nlohmann::json::parse(outcome.text);
    EXPECT_EQ(document["transport"], "uc");
    EXPECT_EQ(document["clients"], 3);
    EXPECT_EQ(document["operations"], 300);
    EXPECT_EQ(document["server"], "127.0.0.1:" + port);
    const CommandOutcome told =
        run_command({"kv", "bench", "--port", port, "--rdma", "uc", "--clients", "2", "--ops", "20",
                     "--keys", "5", "-v", "--debug"});
    EXPECT_TRUE(told.exit.success()) << told.text;
    EXPECT_NE(told.text.find("operations per second: 20 in "), std::string::npos) << told.text;
    EXPECT_TRUE(run_command({"kv", "bench", "-h"}).exit.success());
    EXPECT_TRUE(run_command({"kv", "bench", "-a", address_, "-p", "1"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "bench", "-r", "tcp"}).exit.exited_with(2));
}

TEST_F(Kv, LoadsAServerOfItsOwn) {
    const CommandOutcome outcome = run_command(
        {"kv", "bench", "--operations", "500", "--keys", "50", "--value-bytes", "5000"});
    EXPECT_TRUE(outcome.exit.success()) << outcome.text;
    EXPECT_NE(outcome.text.find("operations per second: 500 in "), std::string::npos)
        << outcome.text;
}

}  // namespace
