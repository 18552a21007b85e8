#include <filesystem>
#include <string>

#include <fmt/format.h>

#include "checks.hpp"
#include "millrace/base/error.hpp"
#include "millrace/cm/choice.hpp"
#include "millrace/verbs/device.hpp"

namespace millrace::tools::doctor {
namespace {

bool loaded(const std::string& module) { return std::filesystem::exists("/sys/module/" + module); }

Finding modules() {
    Finding finding{.name = "kernel modules"};
    finding.found =
        fmt::format("ib_uverbs {}, rdma_rxe {}", loaded("ib_uverbs") ? "loaded" : "not loaded",
                    loaded("rdma_rxe") ? "loaded" : "not loaded");
    if (!loaded("ib_uverbs")) {
        finding.verdict = Verdict::warn;
        finding.means =
            "no device of the kernel can be used: only the soft device, which needs none";
        finding.remedy =
            "for a NIC: modprobe ib_uverbs and its driver; for the kernel's soft-RoCE: modprobe "
            "rdma_rxe and rdma link add rxe0 type rxe netdev …";
    }
    return finding;
}

Finding connection_manager() {
    Finding finding{.name = "rdma_cm"};
    const bool kernel = cm::kernel_has_rdma_cm();
    if (cm::chosen_server() == cm::Server::soft) {
        finding.found = fmt::format("programs of librdmacm are served by the soft device{}",
                                    kernel ? ", as MILLRACE_CM says" : "");
        return finding;
    }
    finding.found = kernel ? "programs of librdmacm are served by the kernel"
                           : "the kernel has none, and MILLRACE_CM=kernel";
    finding.verdict = kernel ? Verdict::ok : Verdict::warn;
    if (!kernel) {
        finding.means = "programs of librdmacm find no device";
        finding.remedy = "modprobe rdma_ucm, or unset MILLRACE_CM";
    }
    return finding;
}

Finding look_at(const verbs::Device& device) {
    Finding finding{.name = fmt::format("device {}", device.name())};
    try {
        const verbs::DeviceFacts facts = device.facts();
        finding.found = fmt::format(
            "{}, port {} {}{}", facts.description, facts.port,
            facts.port_active ? "active" : "not active",
            facts.gid_index >= 0 ? fmt::format(", GID {} at index {}", facts.gid, facts.gid_index)
                                 : std::string{});
        if (!facts.port_active) {
            finding.verdict = Verdict::warn;
            finding.means = "nothing can be sent through it";
            finding.remedy = "ip link set … up for its network interface; see the cable";
        } else if (facts.link_layer == "Ethernet" && facts.gid_index < 0) {
            finding.verdict = Verdict::warn;
            finding.means = "its GID table is empty: no RoCE connection can be addressed";
            finding.remedy = "give its network interface an address (ip addr add …)";
        }
    } catch (const base::Error& error) {
        finding.verdict = Verdict::fail;
        finding.found = error.cause();
        finding.means = "no program can open it";
        finding.remedy = error.remedy();
    }
    return finding;
}

}  // namespace

std::vector<Finding> check_devices() {
    std::vector<Finding> findings{modules(), connection_manager()};
    for (const auto& device : verbs::devices()) findings.push_back(look_at(device));
    return findings;
}

}  // namespace millrace::tools::doctor
