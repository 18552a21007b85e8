// See list.hpp.
#include "rpc/list.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cat/interruption.hpp"
#include "command_line/output.hpp"
#include "millrace/connect/address.hpp"
#include "millrace/connect/admission.hpp"
#include "millrace/rpc/client.hpp"

namespace millrace::tools {
namespace {

/// In the unit that leaves at most four digits.
std::string shown_time(std::uint64_t nanoseconds) {
    if (nanoseconds < 10'000) return fmt::format("{} ns", nanoseconds);
    if (nanoseconds < 10'000'000) return fmt::format("{} µs", nanoseconds / 1000);
    if (nanoseconds < 10'000'000'000) return fmt::format("{} ms", nanoseconds / 1'000'000);
    return fmt::format("{} s", nanoseconds / 1'000'000'000);
}

std::string shown(const rpc::Type& type) {
    return type.kind == rpc::Kind::plain ? fmt::format("{} ({} B)", type.name, type.size)
                                         : type.name;
}

std::string shown(const rpc::Signature& signature) {
    return fmt::format("{} -> {}{}{}", shown(signature.request), shown(signature.response),
                       signature.is_stream ? "…" : "",
                       signature.is_idempotent ? ", idempotent" : "");
}

nlohmann::json document_of(const std::vector<rpc::ProcedureReport>& procedures) {
    nlohmann::json document = nlohmann::json::array();
    const auto kind = [](rpc::Kind one) {
        return one == rpc::Kind::plain ? "plain" : one == rpc::Kind::bytes ? "bytes" : "codec";
    };
    for (const rpc::ProcedureReport& one : procedures) {
        const rpc::Signature& signature = one.signature;
        document.push_back({
            {"name", signature.name},
            {"number", one.number},
            {"request", signature.request.name},
            {"request_kind", kind(signature.request.kind)},
            {"request_bytes", signature.request.size},
            {"response", signature.response.name},
            {"response_kind", kind(signature.response.kind)},
            {"response_bytes", signature.response.size},
            {"idempotent", signature.is_idempotent},
            {"stream", signature.is_stream},
            {"calls", one.calls},
            {"answered", one.answered},
            {"failed", one.failed},
            {"late", one.late},
            {"overloaded", one.overloaded},
            {"unwanted", one.unwanted},
            {"pending", one.pending},
            {"latency_ns",
             {{"p50", one.latency_p50},
              {"p90", one.latency_p90},
              {"p99", one.latency_p99},
              {"p99.9", one.latency_p999},
              {"max", one.latency_most}}},
        });
    }
    return document;
}

void print(const std::vector<rpc::ProcedureReport>& procedures) {
    Table table{"procedure"};
    for (const char* heading : {"calls", "answered", "failed", "late", "over-\nloaded",
                                "un-\nwanted", "pending", "p50", "p90", "p99", "p99.9", "max"}) {
        table.add_column(heading);
    }
    for (const rpc::ProcedureReport& one : procedures) {
        table.add_row({one.signature.name, std::to_string(one.calls), std::to_string(one.answered),
                       std::to_string(one.failed), std::to_string(one.late),
                       std::to_string(one.overloaded), std::to_string(one.unwanted),
                       std::to_string(one.pending), shown_time(one.latency_p50),
                       shown_time(one.latency_p90), shown_time(one.latency_p99),
                       shown_time(one.latency_p999), shown_time(one.latency_most)});
    }
    fmt::print("{}\n", table.text());
    for (const rpc::ProcedureReport& one : procedures) {
        fmt::print("{}: {}\n", one.signature.name, shown(one.signature));
    }
}

}  // namespace

int run_rpc_list(const RpcListOptions& options) {
    options.json.check();
    const Interruption interruptible;
    const auto deadline = base::Deadline::after(options.timeout).cancelled_by(interruption());
    rpc::ClientOptions chosen;
    if (!options.device.empty()) chosen.messages.endpoint = connect::Endpoint::open(options.device);
    if (!options.secret_file.empty()) {
        chosen.messages.admission.secret = connect::read_secret_file(options.secret_file);
    }
    auto client = rpc::Client::connect<>(connect::Address::parse(options.server), chosen, deadline);
    const std::vector<rpc::ProcedureReport> procedures = client.procedures(deadline);
    (void)client.close(deadline);
    if (!options.json.in_place_of_lines()) print(procedures);
    if (options.json.wanted()) options.json.write(document_of(procedures).dump(2));
    return 0;
}

}  // namespace millrace::tools
