#include "requests.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/framework/payload.hpp"
#include "millrace/base/deadline.hpp"
#include "millrace/message/client.hpp"
#include "millrace/message/server.hpp"
#include "streams.hpp"

namespace millrace::bench {
namespace {

using base::Status;
using message::Transfer;
using Request = std::array<std::uint64_t, 8>;

base::Deadline patience() { return base::Deadline::after(std::chrono::seconds{60}); }

struct Combination {
    std::string_view name;
    Transfer requests;
    Transfer answers;
};
constexpr Combination combinations[] = {
    {"WriteWrite", Transfer::write, Transfer::write},
    {"SendWrite", Transfer::send, Transfer::write},
    {"WriteSend", Transfer::write, Transfer::send},
    {"SendSend", Transfer::send, Transfer::send},
};

/// Answers with bytes that are there already.
struct Answering {
    std::span<const std::byte> response;
    void operator()(message::Request& request) const { (void)request.answer(response); }
};
/// Reads all of it, as the study's requesters do.
struct Reading {
    std::size_t expected;
    void operator()(const message::Answer& answer) const {
        require_intact(answer.payload.size() == expected, "a response");
        keep(read_all(answer.payload.data(), answer.payload.size()));
    }
};

// What callgrind collects in. The responder is looked at once for each request, and finds it.
[[gnu::noinline]] void counted_ask(message::Client& client, const Request& request) {
    std::uint64_t id = 0;
    require(client.submit(std::as_bytes(std::span{request}), id), "a request");
}
[[gnu::noinline]] void counted_response(message::Client& client, const Reading& reading) {
    require(client.poll(reading), "a response");
}
[[gnu::noinline]] void counted_responder(message::Server& server, const Answering& answering) {
    require(server.turn(answering) == 1 ? Status::ok : Status::empty, "a request");
}

void one_to_one(const Combination& by, std::size_t bytes) {
    message::ServerOptions options;
    options.polling = message::Polling::flag;
    if (by.requests == Transfer::send) {
        options.tuning.receives = message::Receives::shared;
        options.protection = message::Protection::trusted;
    }
    message::Server server =
        message::Server::listen(connect::Address::tcp("127.0.0.1", 0), options);
    std::vector<message::Client> clients;
    std::jthread joining{[&] {
        message::ClientOptions chosen;
        chosen.requests = by.requests;
        chosen.answers = by.answers;
        chosen.tuning.slot_bytes =
            std::clamp(std::bit_ceil(bytes + 64), std::size_t{128}, std::size_t{64} << 10);
        chosen.ring_bytes = std::max(std::size_t{16} << 10, 4 * std::bit_ceil(bytes + 64));
        clients.push_back(message::Client::connect(server.address(), chosen, patience()));
        server.stop();
    }};
    const auto nobody = [](message::Request&) {};
    require(server.serve(nobody, patience()) == Status::closed, "a client");
    joining.join();
    const std::vector<std::byte> response(bytes, std::byte{7});
    const Answering answering{response};
    const Reading reading{bytes};
    Request request{};
    for (int i = 0; i < operations; ++i) {
        request[0] = static_cast<std::uint64_t>(i);
        counted_ask(clients[0], request);
        counted_responder(server, answering);
        counted_response(clients[0], reading);
    }
}

}  // namespace

bool count_requests(std::string_view operation) {
    constexpr std::string_view prefix = "rpc-";
    if (!operation.starts_with(prefix)) return false;
    operation.remove_prefix(prefix.size());
    const std::size_t dash = operation.find('-');
    if (dash == std::string_view::npos) return false;
    const std::string_view digits = operation.substr(dash + 1);
    std::size_t bytes = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
    if (read.ec != std::errc{} || read.ptr != digits.data() + digits.size()) return false;
    for (const Combination& each : combinations) {
        if (each.name != operation.substr(0, dash)) continue;
        one_to_one(each, bytes);
        return true;
    }
    return false;
}

}  // namespace millrace::bench
