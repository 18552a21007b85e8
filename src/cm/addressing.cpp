// The manager's commands for addresses: binding, resolving, what librdmacm asks of a route.
#include <rdma/rdma_user_cm.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "device_port.hpp"
#include "manager.hpp"
#include "millrace/base/log.hpp"

namespace millrace::cm {
namespace {

// RDMA_CM_EVENT_… of <rdma/rdma_cma.h>, which is librdmacm's.
constexpr std::uint32_t address_resolved_event = 0;
constexpr std::uint32_t address_error_event = 1;
constexpr std::uint32_t route_resolved_event = 2;

constexpr std::uint16_t default_partition = 0xffff;

constexpr int longest_ack_timeout = 31;  // five bits

template <class Storage>
[[nodiscard]] std::optional<Address> address_in(const Storage& storage) noexcept {
    return Address::from(&storage, sizeof storage);
}

/// The one address of a command that the program itself names: it may be wrong.
[[nodiscard]] int read_of_program(void* to, std::uint64_t address, std::size_t size) noexcept {
    void* const from = reinterpret_cast<void*>(address);
    if (from == nullptr) return EFAULT;
    const iovec here{to, size};
    const iovec there{from, size};
    const ssize_t got = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
    if (got == static_cast<ssize_t>(size)) return 0;
    if (got >= 0 || errno == EFAULT) return EFAULT;
    std::memcpy(to, from, size);  // a sandbox withholds the call
    return 0;
}

void fill_path(ib_user_path_rec& path, const Id& id) noexcept {
    const DevicePort port = device_port();
    path.dlid = path.slid = htons(port.lid);
    path.reversible = 1;
    path.numb_path = 1;
    path.mtu_selector = path.rate_selector = path.packet_life_time_selector = 2;  // exactly
    path.mtu = static_cast<std::uint32_t>(port.mtu);
    path.rate = IBV_RATE_100_GBPS;
    path.packet_life_time = id.life_time();
    path.hop_limit = port.is_ethernet ? 64 : 1;
    path.traffic_class = id.type_of_service;
}

}  // namespace

// --- binding ------------------------------------------------------------------------------------

int Manager::bind_to(Id& id, const Address& address) {
    if (id.state != IdState::idle) return EINVAL;
    if (address.is_multicast()) return EADDRNOTAVAIL;
    if (const int error = address.is_any() ? 0 : check_local(address)) {
        return error == ENODEV ? EADDRNOTAVAIL : error;
    }
    Address bound = address;
    if (const int error = take_port(id.realm, bound, id.port_options, id.socket)) return error;
    id.socket_use = SocketUse::port;
    id.source = bound;
    id.destination = Address::any(bound.family());
    id.has_device = !bound.is_any();
    id.state = IdState::bound;
    return 0;
}

int Manager::bind_ip(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_bind_ip>();
    const auto address = address_in(command.addr);
    if (!address) return EINVAL;
    const auto [id, error] = find(channel, command.id);
    return id == nullptr ? error : bind_to(*id, *address);
}

int Manager::bind(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_bind>();
    // AF_IB is not spoken: librdmacm asks for it once, and then uses the older commands.
    const auto address = Address::from(&command.addr, command.addr_size);
    if (command.reserved != 0 || !address) return EINVAL;
    const auto [id, error] = find(channel, command.id);
    return id == nullptr ? error : bind_to(*id, *address);
}

// --- resolving ----------------------------------------------------------------------------------

int Manager::resolve(Id& id, const Address* source, const Address& destination) {
    if (id.state == IdState::idle) {
        const bool named = source != nullptr && !source->is_none();
        if (named && source->family() != destination.family()) return EINVAL;
        const Address any = Address::any(destination.family());
        if (const int error = bind_to(id, named ? *source : any)) return error;
    }
    if (id.state != IdState::bound || id.source.family() != destination.family()) return EINVAL;
    id.destination = destination;
    if (destination.is_any()) {
        id.destination = Address::loopback(destination.family());
        id.destination.set_port(destination.port());
    }
    const bool is_group = id.destination.is_multicast();
    const int unreached = is_group ? 0 : check_local(id.destination);
    if (unreached != 0 && unreached != ENODEV) return unreached;
    if (unreached != 0) {
        base::log(base::LogLevel::warn, "cm",
                  "resolve {}: it is no address of this host, and the soft device reaches no other",
                  id.destination.text());
        tell(id, address_error_event, -EHOSTUNREACH);
        return 0;
    }
    if (id.source.is_any()) {
        Address source_found;
        if (const int error = find_source(id.destination, source_found)) {
            if (!is_group) {
                tell(id, address_error_event, -error);
                return 0;
            }
            // The host has no way to it, but the soft device has.
            source_found = Address::loopback(id.destination.family());
        }
        source_found.set_port(id.source.port());
        id.source = source_found;
    }
    id.has_device = true;
    id.state = IdState::address_resolved;
    tell(id, address_resolved_event, 0);
    return 0;
}

int Manager::resolve_ip(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_resolve_ip>();
    const auto source = address_in(command.src_addr);
    const auto destination = address_in(command.dst_addr);
    if (!destination || (!source && command.src_addr.sin6_family != AF_UNSPEC)) return EINVAL;
    const auto [id, error] = find(channel, command.id);
    return id == nullptr ? error : resolve(*id, source ? &*source : nullptr, *destination);
}

int Manager::resolve_address(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_resolve_addr>();
    const auto source = Address::from(&command.src_addr, command.src_size);
    const auto destination = Address::from(&command.dst_addr, command.dst_size);
    if (command.reserved != 0 || !destination || (!source && command.src_size != 0)) return EINVAL;
    const auto [id, error] = find(channel, command.id);
    return id == nullptr ? error : resolve(*id, source ? &*source : nullptr, *destination);
}

int Manager::resolve_route(Channel& channel, const Request& request) {
    const auto [id, error] = find(channel, request.as<rdma_ucm_resolve_route>().id);
    if (id == nullptr) return error;
    if (id->state != IdState::address_resolved) return EINVAL;
    id->has_path = true;
    id->state = IdState::route_resolved;
    tell(*id, route_resolved_event, 0);
    return 0;
}

// --- queries ------------------------------------------------------------------------------------

namespace {

/// What both queries say alike: the addresses, and by which device they are reached.
template <class Answer>
void fill_ends(Answer& answer, const Id& id, const DevicePort& port) noexcept {
    std::memcpy(&answer.src_addr, id.source.get(), id.source.size());
    std::memcpy(&answer.dst_addr, id.destination.get(), id.destination.size());
    answer.ibdev_index = port.index;
    if (!id.has_device) return;
    answer.node_guid = port.guid;
    answer.port_num = port.number;
}

}  // namespace

int Manager::query_route(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_query>();
    constexpr std::size_t least = offsetof(rdma_ucm_query_route_resp, ibdev_index);
    if (!request.has_room_for(least)) return ENOSPC;
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    rdma_ucm_query_route_resp answer{};
    fill_ends(answer, *id, device_port());
    if (id->has_device) {
        auto& route = answer.ib_route[0];
        if (!id->source.is_any()) {
            std::memcpy(route.sgid, gid_of_address(id->source).gid.raw, sizeof route.sgid);
        }
        if (!id->destination.is_any()) {
            std::memcpy(route.dgid, gid_of_address(id->destination).gid.raw, sizeof route.dgid);
        }
        route.pkey = htons(default_partition);
        if (id->has_path) {
            answer.num_paths = 1;
            fill_path(route, *id);
        }
    }
    return request.answer(command.response, answer, least);
}

int Manager::query(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_query>();
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    // The others belong to AF_IB.
    if (command.option != RDMA_USER_CM_QUERY_ADDR) return ENOSYS;
    rdma_ucm_query_addr_resp answer{};
    answer.src_size = static_cast<std::uint16_t>(id->source.size());
    answer.dst_size = static_cast<std::uint16_t>(id->destination.size());
    fill_ends(answer, *id, device_port());
    if (id->has_device) answer.pkey = htons(default_partition);
    return request.answer(command.response, answer,
                          offsetof(rdma_ucm_query_addr_resp, ibdev_index));
}

// --- options ------------------------------------------------------------------------------------

int Manager::set_option(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_set_option>();
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    // Paths are the soft device's own choice.
    if (command.level == RDMA_OPTION_IB && command.optname == RDMA_OPTION_IB_PATH) return EINVAL;
    if (command.level != RDMA_OPTION_ID) return ENOSYS;
    const bool is_byte =
        command.optname == RDMA_OPTION_ID_TOS || command.optname == RDMA_OPTION_ID_ACK_TIMEOUT;
    if (!is_byte && command.optname != RDMA_OPTION_ID_REUSEADDR &&
        command.optname != RDMA_OPTION_ID_AFONLY) {
        return ENOSYS;
    }
    if (command.optlen != (is_byte ? sizeof(std::uint8_t) : sizeof(int))) return EINVAL;
    int value = 0;
    if (const int unread = read_of_program(&value, command.optval, command.optlen)) return unread;
    switch (command.optname) {
        case RDMA_OPTION_ID_TOS: id->type_of_service = static_cast<std::uint8_t>(value); return 0;
        case RDMA_OPTION_ID_ACK_TIMEOUT:
            if (id->type == IBV_QPT_UD || value > longest_ack_timeout) return EINVAL;
            id->ack_timeout = static_cast<std::uint8_t>(value);
            return 0;
        case RDMA_OPTION_ID_REUSEADDR:
            if (id->state != IdState::idle && !(value != 0 && id->state != IdState::listening)) {
                return EINVAL;
            }
            if (id->socket_use == SocketUse::port && !id->port_options.shared) {
                PortOptions shared = id->port_options;
                shared.shared = true;
                if (const int refused =
                        change_port(id->realm, id->source, id->port_options, shared, id->socket)) {
                    return refused;
                }
            }
            id->port_options.shared = value != 0;
            return 0;
        default:
            if (id->state != IdState::idle && id->state != IdState::bound) return EINVAL;
            id->port_options.family_only = value != 0;
            return 0;
    }
}

}  // namespace millrace::cm
