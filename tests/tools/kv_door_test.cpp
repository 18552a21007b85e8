// `millrace kv serve` with doors, as a user runs it.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <string>

#include "support/command.hpp"
#include "tools/kv_command.hpp"

namespace {

using millrace::test::CommandOutcome;
using millrace::test::Kv;
using millrace::test::run_command;
using millrace::test::run_line;

class KvDoor : public Kv {
  protected:
    /// All that the door says to these bytes, until it closes the connection.
    [[nodiscard]] std::string say(const std::string& bytes,
                                  const std::string& door = "resp") const {
        return run_line(
                   "python3 -c 'import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect(\"" +
                   folder_.path(door) + "\")\ns.sendall(b\"\"\"" + bytes +
                   "\"\"\")\nprint(b\"\".join(iter(lambda: s.recv(65536), b\"\")).decode(), "
                   "end=\"\")'")
            .text;
    }
    std::string resp_ = "unix:" + folder_.path("resp");
    std::string memcached_ = "unix:" + folder_.path("memcached");
};

TEST_F(KvDoor, LetsInWhoKnowsThePasswordAndCountsIt) {
    const std::string password = "a long and secret word";
    std::ofstream{folder_.path("password")} << password << '\n';
    ::chmod(folder_.path("password").c_str(), 0600);
    serve({"--resp", resp_, "--password-file", folder_.path("password"), "--max-connections", "5",
           "--idle-timeout", "60", "--metrics", "127.0.0.1:0"});
    EXPECT_EQ(server_->read_line(), "Redis' protocol at " + resp_);
    const std::string shown = server_->read_line().value_or("");
    EXPECT_EQ(say("GET name\r\nQUIT\r\n"), "-NOAUTH Authentication required.\r\n+OK\r\n");
    EXPECT_EQ(say("AUTH \"" + password +
                  "\"\r\nSET name \"a value\"\r\nCONFIG GET maxclients\r\n"
                  "QUIT\r\n"),
              "+OK\r\n+OK\r\n*2\r\n$10\r\nmaxclients\r\n$1\r\n5\r\n+OK\r\n");
    EXPECT_EQ(ask({"get", "name"}).text, "a value");
    const std::string stats = ask({"stats"}).text;
    for (const char* const name : {"resp_connections", "resp_commands", "resp_p99_ns"}) {
        EXPECT_NE(stats.find(name), std::string::npos) << stats;
    }
    ASSERT_TRUE(shown.starts_with("metrics at ")) << shown;
    const CommandOutcome metrics =
        run_line("python3 -c 'import urllib.request\nprint(urllib.request.urlopen(\"" +
                 shown.substr(11) + "\").read().decode())'");
    for (const char* const line : {"millrace_kv_door_commands_total{door=\"resp\"} 6\n",
                                   "millrace_kv_door_errors_total{door=\"resp\"} 1\n",
                                   "millrace_kv_door_closed_total{door=\"resp\",why=\"slow\"} 0\n",
                                   "millrace_kv_door_seconds_count{door=\"resp\"} "}) {
        EXPECT_NE(metrics.text.find(line), std::string::npos) << line << metrics.text;
    }
    server_->send_signal(SIGTERM);
    EXPECT_NE(server_->read_all().find("answered 6 commands of 2 connections of Redis' clients\n"),
              std::string::npos);
    EXPECT_TRUE(server_->wait().success());
}

TEST_F(KvDoor, LetsClientsOfMemcachedInBesideThoseOfRedis) {
    const std::string password = "a long and secret word";
    std::ofstream{folder_.path("password")} << password << '\n';
    ::chmod(folder_.path("password").c_str(), 0600);
    serve({"--memcached", memcached_, "--resp", resp_, "--password-file", folder_.path("password"),
           "--metrics", "127.0.0.1:0"});
    EXPECT_EQ(server_->read_line(), "Redis' protocol at " + resp_);
    EXPECT_EQ(server_->read_line(), "memcached's protocol at " + memcached_);
    const std::string shown = server_->read_line().value_or("");
    const std::string login = "default " + password;
    // Python takes the end of a line in its own text for a newline alone.
    const std::string end = "\\r\\n";
    EXPECT_EQ(say("get k" + end + "set any 0 0 " + std::to_string(login.size()) + end + login +
                      end + "set k 7 0 5" + end + "value" + end + "get k" + end + "quit" + end,
                  "memcached"),
              "CLIENT_ERROR unauthenticated\r\nSTORED\r\nSTORED\r\n"
              "VALUE k 7 5\r\nvalue\r\nEND\r\n");
    EXPECT_EQ(say("AUTH \"" + password + "\"\r\nGET k\r\nQUIT\r\n"),
              "+OK\r\n$5\r\nvalue\r\n+OK\r\n");
    EXPECT_EQ(ask({"get", "k"}).text, "value");
    EXPECT_NE(ask({"stats"}).text.find("memcached_commands 5\n"), std::string::npos);
    ASSERT_TRUE(shown.starts_with("metrics at ")) << shown;
    const CommandOutcome metrics =
        run_line("python3 -c 'import urllib.request\nprint(urllib.request.urlopen(\"" +
                 shown.substr(11) + "\").read().decode())'");
    for (const char* const counted :
         {"millrace_kv_door_commands_total{door=\"resp\"} 3\n"
          "millrace_kv_door_commands_total{door=\"memcached\"} 5\n",
          "millrace_kv_door_closed_total{door=\"memcached\",why=\"slow\"} 0\n",
          "millrace_kv_door_seconds_count{door=\"memcached\"} "}) {
        EXPECT_NE(metrics.text.find(counted), std::string::npos) << counted << metrics.text;
    }
    server_->send_signal(SIGTERM);
    EXPECT_NE(
        server_->read_all().find("answered 5 commands of 1 connections of memcached's clients\n"),
        std::string::npos);
    EXPECT_TRUE(server_->wait().success());
}

TEST_F(KvDoor, SpeaksTlsWithItsCertificateAndCountsHandshakes) {
    const std::string certificate = folder_.path("certificate.pem");
    const std::string key = folder_.path("key.pem");
    ASSERT_TRUE(run_line("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
                         "-keyout " +
                         key + " -out " + certificate + " -days 30 -subj /CN=localhost")
                    .exit.success());
    ::chmod(key.c_str(), 0600);
    serve({"--resp", resp_, "--memcached", memcached_, "--tls-cert", certificate, "--tls-key", key,
           "--metrics", "127.0.0.1:0"});
    EXPECT_EQ(server_->read_line(), "Redis' protocol at " + resp_ + ", by TLS");
    EXPECT_EQ(server_->read_line(), "memcached's protocol at " + memcached_ + ", by TLS");
    const std::string shown = server_->read_line().value_or("");
    EXPECT_EQ(run_line("redis-cli --tls --cacert " + certificate + " -s " + folder_.path("resp") +
                       " set name value")
                  .text,
              "OK\n");
    EXPECT_EQ(say("PING\r\n").find("PONG"), std::string::npos);
    const std::string stats = ask({"stats"}).text;
    EXPECT_NE(stats.find("resp_tls_accepted 1\nresp_tls_failed 1\n"), std::string::npos) << stats;
    ASSERT_TRUE(shown.starts_with("metrics at ")) << shown;
    const CommandOutcome metrics =
        run_line("python3 -c 'import urllib.request\nprint(urllib.request.urlopen(\"" +
                 shown.substr(11) + "\").read().decode())'");
    for (const char* const line :
         {"millrace_kv_door_tls_accepted_total{door=\"resp\"} 1\n",
          "millrace_kv_door_closed_total{door=\"resp\",why=\"tls\"} 1\n"}) {
        EXPECT_NE(metrics.text.find(line), std::string::npos) << line << metrics.text;
    }
}

TEST_F(KvDoor, RefusesWrongWords) {
    EXPECT_TRUE(
        run_command({"kv", "serve", "--resp", resp_, "--tls-cert", "x"}).exit.exited_with(2));
    EXPECT_TRUE(
        run_command({"kv", "serve", "--tls-cert", "x", "--tls-key", "y"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "serve", "--memcached", "nowhere"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "serve", "--resp", "nowhere"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "serve", "--password-file", "x"}).exit.exited_with(2));
    EXPECT_TRUE(run_command({"kv", "serve", "--resp", resp_, "--max-connections", "0"})
                    .exit.exited_with(2));
    std::ofstream{folder_.path("open")} << "a long and secret word\n";
    ::chmod(folder_.path("open").c_str(), 0644);
    const CommandOutcome open = run_command({"kv", "serve", "--listen", address_, "--resp", resp_,
                                             "--password-file", folder_.path("open")});
    EXPECT_TRUE(open.exit.exited_with(1)) << open.text;
    serve({"--resp", resp_});
    const CommandOutcome taken =
        run_command({"kv", "serve", "--listen", "unix:" + folder_.path("other"), "--resp", resp_});
    EXPECT_TRUE(taken.exit.exited_with(1));
    EXPECT_NE(taken.text.find(resp_), std::string::npos) << taken.text;
}

}  // namespace
