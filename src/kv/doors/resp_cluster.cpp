// The RESP door's commands for clients of a Redis cluster: to them it is a cluster of one node that
// has all slots. So a client that spreads keys over nodes finds where to go, and is sent nowhere
// else.
//
// Source: the Redis cluster specification (slots: CRC-16/XMODEM of a key, or of what is between its
// first braces, modulo 16,384).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "doors/resp_commands.hpp"
#include "doors/text.hpp"

namespace millrace::kv::resp {
namespace {

constexpr std::int64_t slots = 16'384;

constexpr std::array<std::uint16_t, 256> crc16_table = [] {
    std::array<std::uint16_t, 256> table{};
    for (unsigned byte = 0; byte < table.size(); ++byte) {
        unsigned crc = byte << 8;
        for (int bit = 0; bit < 8; ++bit) crc = crc << 1 ^ ((crc & 0x8000U) != 0 ? 0x1021U : 0U);
        table[byte] = static_cast<std::uint16_t>(crc);
    }
    return table;
}();

std::int64_t slot_of(std::string_view key) noexcept {
    const std::size_t open = key.find('{');
    if (open != key.npos) {
        const std::size_t close = key.find('}', open + 1);
        if (close != key.npos && close != open + 1) key = key.substr(open + 1, close - open - 1);
    }
    std::uint16_t crc = 0;
    for (const char letter : key) {
        const auto byte = static_cast<unsigned char>(letter);
        crc = static_cast<std::uint16_t>(crc << 8 ^ crc16_table[(crc >> 8 ^ byte) & 0xffU]);
    }
    return crc % slots;
}

/// Where a client has come to: it has that address, whatever others have.
struct Endpoint {
    std::string ip;  ///< empty: it came by a Unix socket
    std::int64_t port = 0;
};

Endpoint endpoint_of(const RespSession& session) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getsockname(session.descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
        return {};
    }
    char text[INET6_ADDRSTRLEN] = "";
    if (address.ss_family == AF_INET) {
        const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
        ::inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof text);
        return {text, ntohs(ipv4.sin_port)};
    }
    if (address.ss_family != AF_INET6) return {};
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) {
        ::inet_ntop(AF_INET, &ipv6.sin6_addr.s6_addr[12], text, sizeof text);
    } else {
        ::inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof text);
    }
    return {text, ntohs(ipv6.sin6_port)};
}

/// Calls with every key of a slot until `visit(key)` returns false. Looks at all items.
template <class Visit>
void each_key_of(const Store& store, std::int64_t slot, Visit visit) {
    bool goes_on = true;
    for (Cursor at = Cursor::begin; at != Cursor::end && goes_on;) {
        at = store.visit_from(at, [&](const Entry& entry) {
            const std::string_view key = word_of(entry.key);
            if (slot_of(key) == slot) goes_on = visit(key);
            return goes_on;
        });
    }
}

/// True: the word names this node; otherwise it is answered.
bool is_this_node(RespCall& call) {
    if (call.word(2) == call.service.node) return true;
    call.out.error(fmt::format("ERR Unknown node {}", repeated(call.word(2))));
    return false;
}

}  // namespace

void agree(RespCall& call) { call.ok(); }

void cluster_info(RespCall& call) {
    call.out.text(
        fmt::format("cluster_state:ok\r\ncluster_slots_assigned:{0}\r\ncluster_slots_ok:{0}\r\n"
                    "cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:1\r\n"
                    "cluster_size:1\r\ncluster_current_epoch:0\r\ncluster_my_epoch:0\r\n"
                    "cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n"
                    "total_cluster_links_buffer_limit_exceeded:0\r\n",
                    slots));
}

void cluster_myid(RespCall& call) { call.out.string(call.service.node); }

void cluster_nodes(RespCall& call) {
    const Endpoint here = endpoint_of(call.session);
    // After the @ is the port by which nodes talk to each other: there is none.
    call.out.text(fmt::format("{} {}:{}@0 myself,master - 0 0 0 connected 0-{}\n",
                              call.service.node, here.ip, here.port, slots - 1));
}

void cluster_slots(RespCall& call) {
    const Endpoint here = endpoint_of(call.session);
    call.out.array(1);
    call.out.array(3);
    call.out.integer(0);
    call.out.integer(slots - 1);
    call.out.array(4);
    call.out.string(here.ip);
    call.out.integer(here.port);
    call.out.string(call.service.node);
    call.out.map(0);  // other names of it
}

void cluster_shards(RespCall& call) {
    const Endpoint here = endpoint_of(call.session);
    const auto pair = [&](std::string_view of, std::string_view is) {
        call.out.string(of);
        call.out.string(is);
    };
    call.out.array(1);
    call.out.map(2);
    call.out.string("slots");
    call.out.array(2);
    call.out.integer(0);
    call.out.integer(slots - 1);
    call.out.string("nodes");
    call.out.array(1);
    const bool has_port = here.port != 0;
    call.out.map(has_port ? 7 : 6);
    pair("id", call.service.node);
    if (has_port) {
        call.out.string("port");
        call.out.integer(here.port);
    }
    pair("ip", here.ip);
    pair("endpoint", here.ip);
    pair("role", "master");
    call.out.string("replication-offset");
    call.out.integer(0);
    pair("health", "online");
}

void cluster_links(RespCall& call) { call.out.array(0); }

void cluster_replicas(RespCall& call) {
    if (is_this_node(call)) call.out.array(0);
}

void cluster_failure_reports(RespCall& call) {
    if (is_this_node(call)) call.out.integer(0);
}

void cluster_keyslot(RespCall& call) { call.out.integer(slot_of(call.word(2))); }

void cluster_countkeysinslot(RespCall& call) {
    const auto slot = call.integer(2);
    if (!slot) return;
    if (*slot < 0 || *slot >= slots) return call.out.error("ERR Invalid slot");
    std::int64_t count = 0;
    each_key_of(call.store(), *slot, [&](std::string_view) {
        ++count;
        return true;
    });
    call.out.integer(count);
}

void cluster_getkeysinslot(RespCall& call) {
    const auto slot = call.integer(2);
    if (!slot) return;
    const auto most = call.integer(3);
    if (!most) return;
    if (*slot < 0 || *slot >= slots || *most < 0) {
        return call.out.error("ERR Invalid slot or number of keys");
    }
    // How many there are is said before the first.
    call.scratch.clear();
    RespWriter keys{call.scratch, 2 * call.service.options.max_unread_bytes, call.out.protocol()};
    std::int64_t count = 0;
    if (*most != 0) {
        each_key_of(call.store(), *slot, [&](std::string_view key) {
            keys.string(key);
            return ++count != *most && !keys.is_full();
        });
    }
    if (keys.is_full()) return call.out.give_up();
    call.out.array(static_cast<std::size_t>(count));
    call.out.raw(call.scratch);
}

}  // namespace millrace::kv::resp
