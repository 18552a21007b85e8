// The manager's commands for connections, what becomes of them, and the carriers: sockets between
// two processes of which each message is one MAD.
#include <rdma/rdma_user_cm.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "device_port.hpp"
#include "manager.hpp"
#include "millrace/base/clock.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/detail/system_calls.hpp"
#include "millrace/base/log.hpp"

namespace millrace::cm {
namespace {

constexpr std::uint32_t longest_backlog = 1024;
/// More than that from processes that then say nothing push out the oldest.
constexpr std::size_t most_newcomers = 256;
/// Clients, or messages of one, that are taken in one go: any user of the host may connect, and the
/// program's commands wait meanwhile.
constexpr int most_at_once = 16;
/// How long to look for who listens before the answer is that nobody does. On a network, routes and
/// requests take their time, and programs count on it: perftest's client connects when its server
/// is about to listen, and does not survive the refusal.
constexpr std::chrono::milliseconds listener_patience{100};
constexpr int listener_pause_ms = 5;
constexpr int deadline_lateness_ms = 500;

[[nodiscard]] Gid bytes_of(const ibv_gid& gid) noexcept {
    Gid bytes{};
    std::memcpy(bytes.data(), gid.raw, bytes.size());
    return bytes;
}

/// An address as the header of a request has it: IPv4 in the last four bytes.
[[nodiscard]] Gid header_bytes_of(const Address& address) noexcept {
    Gid bytes{};
    std::memcpy(bytes.data() + bytes.size() - address.byte_count(), address.bytes(),
                address.byte_count());
    return bytes;
}

[[nodiscard]] Address address_of(const AddressHeader& header, const Gid& bytes,
                                 std::uint16_t port) noexcept {
    Address address;
    if (header.ip_version == 4) {
        sockaddr_in plain{};
        plain.sin_family = AF_INET;
        plain.sin_port = htons(port);
        std::memcpy(&plain.sin_addr, bytes.data() + bytes.size() - sizeof plain.sin_addr,
                    sizeof plain.sin_addr);
        address = *Address::from(&plain, sizeof plain);
    } else {
        sockaddr_in6 plain{};
        plain.sin6_family = AF_INET6;
        plain.sin6_port = htons(port);
        std::memcpy(&plain.sin6_addr, bytes.data(), sizeof plain.sin6_addr);
        address = *Address::from(&plain, sizeof plain);
    }
    return address;
}

[[nodiscard]] AddressHeader header_of(const Id& id) noexcept {
    AddressHeader header;
    header.ip_version = id.source.family() == AF_INET ? 4 : 6;
    header.source_port = id.source.port();
    header.source = header_bytes_of(id.source);
    header.destination = header_bytes_of(id.destination);
    return header;
}

[[nodiscard]] std::uint32_t new_comm_id() {
    const auto bits = static_cast<std::uint32_t>(base::random_bits());
    return bits == 0 ? 1 : bits;
}

[[nodiscard]] std::span<const std::uint8_t> private_bytes_of(const std::uint8_t* bytes,
                                                             std::size_t size) noexcept {
    return {bytes, size};
}

[[nodiscard]] Terms terms_of(const rdma_ucm_conn_param& said, std::uint32_t starting_psn) noexcept {
    return {.qpn = said.qp_num,
            .starting_psn = starting_psn,
            .responder_resources = said.responder_resources,
            .initiator_depth = said.initiator_depth,
            .flow_control = said.flow_control != 0,
            .retry_count = said.retry_count,
            .rnr_retry_count = said.rnr_retry_count,
            .srq = said.srq != 0,
            .private_data = private_bytes_of(said.private_data, said.private_data_len)};
}

[[nodiscard]] Destination destination_of(const Id& id) noexcept {
    const DevicePort port = device_port();
    Destination to;
    to.service_id = service_id(id.realm.space, id.destination.port());
    to.addresses = header_of(id);
    to.transport = id.type == IBV_QPT_UC ? TransportType::uc : TransportType::rc;
    to.path_mtu = static_cast<std::uint8_t>(port.mtu);
    to.life_time = id.life_time();
    to.path.local_lid = to.path.remote_lid = port.lid;
    to.path.local_gid = bytes_of(gid_of_address(id.source).gid);
    to.path.remote_gid = bytes_of(gid_of_address(id.destination).gid);
    to.path.packet_rate = IBV_RATE_100_GBPS;
    to.path.traffic_class = id.type_of_service;
    to.path.hop_limit = port.is_ethernet ? 64 : 1;
    to.path.subnet_local = !port.is_ethernet;
    return to;
}

void fill_connection(rdma_ucm_conn_param& to, const Event& event) noexcept {
    to.qp_num = event.qpn;
    to.responder_resources = event.responder_resources;
    to.initiator_depth = event.initiator_depth;
    to.flow_control = event.flow_control ? 1 : 0;
    to.retry_count = event.retry_count;
    to.rnr_retry_count = event.rnr_retry_count;
    to.srq = event.srq ? 1 : 0;
    to.private_data_len = event.private_size;
    std::memcpy(to.private_data, event.private_data.data(), event.private_size);
}

void fill_datagrams(rdma_ucm_ud_param& to, const Event& event, const Id& id) noexcept {
    to.qp_num = event.qpn;
    to.qkey = event.q_key;
    if (event.kind == EventKind::established) {
        to.ah_attr = way_to(bytes_of(gid_of_address(id.destination).gid), id.source);
    }
    to.private_data_len = event.private_size;
    std::memcpy(to.private_data, event.private_data.data(), event.private_size);
}

/// Reads one message. 0: the other end is gone; negative: there is none at the moment.
[[nodiscard]] ssize_t read_message(int socket, MadBytes& bytes) noexcept {
    for (;;) {
        const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
        base::count_system_call();
        if (got >= 0) return got;
        // Who closes without having read all says so first; what it had sent is still there.
        if (errno == EAGAIN) return -1;
        if (errno != EINTR && errno != ECONNRESET) return 0;
    }
}

}  // namespace

// --- commands -----------------------------------------------------------------------------------

int Manager::listen(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_listen>();
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    if (id->state == IdState::idle) {
        if (const int refused = bind_to(*id, Address::any(AF_INET))) return refused;
    }
    if (id->state != IdState::bound) return EINVAL;
    const bool said = command.backlog > 0 && command.backlog < longest_backlog;
    const std::uint32_t backlog = said ? command.backlog : longest_backlog;
    // The program's backlog counts requests that it has not taken; carriers are taken at once.
    if (const int refused = listen_on_port(id->realm, id->source, id->port_options,
                                           static_cast<int>(longest_backlog), id->socket)) {
        return refused;
    }
    id->requests_left = backlog;
    watch_socket(*id, SocketUse::listener);
    id->state = IdState::listening;
    return 0;
}

int Manager::connect(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_connect>();
    if (command.conn_param.valid == 0) return EINVAL;
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    if (id->state != IdState::route_resolved) return EINVAL;
    const Time now = base::Clock::now();
    id->connection.emplace(new_comm_id(), be64toh(device_port().guid));
    const rdma_ucm_conn_param& said = command.conn_param;
    const Step step =
        id->type == IBV_QPT_UD
            ? id->connection->resolve(
                  service_id(id->realm.space, id->destination.port()), header_of(*id), 0xffff,
                  private_bytes_of(said.private_data, said.private_data_len), now)
            : id->connection->connect(destination_of(*id), terms_of(said, id->starting_psn), now);
    if (step.error != 0) {
        id->connection.reset();
        return step.error;
    }
    id->state = IdState::connecting;
    follow(*id, step);
    return 0;
}

int Manager::accept(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_accept>();
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    if (id->state != IdState::connecting) return EINVAL;
    const rdma_ucm_conn_param& said = command.conn_param;
    Connection& connection = *id->connection;
    const Time now = base::Clock::now();
    Step step;
    if (said.valid == 0) {
        step = connection.confirm(now);
    } else if (id->type == IBV_QPT_UD) {
        step = connection.answer(SidrStatus::success, said.qp_num,
                                 said.qkey == 0 ? datagram_queue_key : said.qkey,
                                 private_bytes_of(said.private_data, said.private_data_len));
    } else {
        step = connection.accept(terms_of(said, id->starting_psn), now);
    }
    if (step.error != 0) {
        // As the kernel does: the other end has not to wait for an answer that will not come.
        refuse_request(*id, RejectReason::consumer_defined, {});
        return step.error;
    }
    if (said.valid != 0) id->uid = command.uid;
    follow(*id, step);
    return 0;
}

int Manager::reject(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_reject>();
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    constexpr std::uint8_t vendor_option_refused = 35;
    const bool known_reason =
        command.reason == 0 || command.reason == vendor_option_refused ||
        command.reason == static_cast<std::uint8_t>(RejectReason::consumer_defined);
    if (!id->connection || !known_reason) return EINVAL;
    const auto data = private_bytes_of(command.private_data, command.private_data_len);
    const auto reason = command.reason == 0 ? RejectReason::consumer_defined
                                            : static_cast<RejectReason>(command.reason);
    return refuse_request(*id, reason, data);
}

int Manager::refuse_request(Id& id, RejectReason reason, std::span<const std::uint8_t> data) {
    const Step step = id.type == IBV_QPT_UD
                          ? id.connection->answer(SidrStatus::rejected, 0, 0, data)
                          : id.connection->reject(reason, data, base::Clock::now());
    if (step.error == 0) follow(id, step);
    return step.error;
}

int Manager::disconnect(Channel& channel, const Request& request) {
    const auto [id, error] = find(channel, request.as<rdma_ucm_disconnect>().id);
    if (id == nullptr) return error;
    if (!id->connection) return EINVAL;
    const Step step = id->connection->disconnect(base::Clock::now());
    if (step.error == 0) follow(*id, step);
    return step.error;
}

int Manager::notify(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_notify>();
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    if (!id->connection || command.event != IBV_EVENT_COMM_EST) return EINVAL;
    const Step step = id->connection->establish(base::Clock::now());
    if (step.error == 0) follow(*id, step);
    return step.error;
}

int Manager::init_queue_pair(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_init_qp_attr>();
    if (!request.has_room_for(sizeof(ib_uverbs_qp_attr))) return ENOSPC;
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    if (!id->has_device || command.qp_state > IBV_QPS_ERR) return EINVAL;
    ib_uverbs_qp_attr answer{};
    answer.qp_state = command.qp_state;
    const bool connected_type = id->type != IBV_QPT_UD;
    const bool before = !id->connection || !connected_type;
    const auto* const facts = before ? nullptr : &id->connection->facts();
    if (before || command.qp_state == IBV_QPS_INIT) {
        if (!before && !id->connection->has_path()) return EINVAL;
        answer.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        answer.port_num = device_port().number;
        if (!connected_type) {
            answer.qkey = datagram_queue_key;
            answer.qp_attr_mask |= IBV_QP_QKEY;
        } else {
            answer.qp_attr_mask |= IBV_QP_ACCESS_FLAGS;
            if (!before) answer.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
            if (!before && facts->responder_resources != 0) {
                answer.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            }
        }
        return request.answer(command.response, answer);
    }
    if (!id->connection->has_peer()) return EINVAL;
    const bool reliable = facts->transport == TransportType::rc;
    if (command.qp_state == IBV_QPS_RTR) {
        answer.qp_attr_mask =
            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        answer.ah_attr = way_to(facts->path.remote_gid, id->source);
        answer.path_mtu = facts->path_mtu;
        answer.dest_qp_num = facts->remote_qpn;
        answer.rq_psn = id->starting_psn;  // librdmacm asks before it accepts
        if (reliable) {
            answer.qp_attr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            answer.max_dest_rd_atomic = facts->responder_resources;
        }
    } else if (command.qp_state == IBV_QPS_RTS) {
        answer.qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        answer.sq_psn = facts->send_psn;
        if (reliable) {
            answer.qp_attr_mask |=
                IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            answer.timeout = id->ack_timeout.value_or(facts->timeout);
            answer.retry_cnt = facts->retry_count;
            answer.rnr_retry = facts->rnr_retry_count;
            answer.max_rd_atomic = facts->initiator_depth;
        }
    } else {
        return EINVAL;
    }
    return request.answer(command.response, answer);
}

// --- what a connection wants --------------------------------------------------------------------

void Manager::follow(Id& id, const Step& step) {
    if (step.mad) send(id, *step.mad);
    if (step.event) give(id, *step.event);
    note_deadline(id);
}

/// What cannot be sent is lost, as on a network: the connection sends it again.
void Manager::send(Id& id, const Mad& mad) {
    if (id.socket_use == SocketUse::port && !reach_listener(id, mad)) return;
    if (id.socket_use == SocketUse::carrier) put(id, mad);
}

void Manager::put(const Id& id, const Mad& mad) noexcept {
    const MadBytes bytes = encode(mad);
    base::count_system_call();
    if (::send(id.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
        errno != EAGAIN) {
        base::log(base::LogLevel::debug, "cm", "send to a peer: {}", std::strerror(errno));
    }
}

/// False: nobody listens, or nobody who would take more at the moment.
bool Manager::reach_listener(Id& id, const Mad& mad) {
    const int error = connect_to_port(id.realm, id.destination, id.socket);
    if (error == EAGAIN) return false;
    if (error == 0) {
        unheard_.erase(&id);
        id.unheard.reset();
        watch_socket(id, SocketUse::carrier);
        return true;
    }
    if (!id.unheard) {
        id.unheard = mad;
        id.refused_at = base::Clock::now() + listener_patience;
        unheard_.insert(&id);
        engine_.wake();
    }
    return false;
}

void Manager::seek_listeners(Time now) {
    for (Id* const id : std::vector<Id*>(unheard_.begin(), unheard_.end())) {
        const Mad said = *id->unheard;
        if (now < id->refused_at) {
            send(*id, said);
            continue;
        }
        unheard_.erase(id);
        id->unheard.reset();
        if (const auto answer = refuse(said)) follow(*id, id->connection->receive(*answer, now));
    }
}

void Manager::give(Id& id, const Event& event) {
    if (event.kind == EventKind::disconnected) id.state = IdState::disconnected;
    if (id.uid == 0 || id.channel == nullptr) return;
    QueuedEvent queued;
    queued.about = &id;
    queued.response.uid = id.uid;
    queued.response.id = id.handle;
    queued.response.event = static_cast<std::uint32_t>(event.kind);
    queued.response.status = static_cast<std::uint32_t>(event.status);
    if (id.type == IBV_QPT_UD) {
        fill_datagrams(queued.response.param.ud, event, id);
    } else {
        fill_connection(queued.response.param.conn, event);
    }
    queue(*id.channel, std::move(queued));
}

void Manager::note_deadline(Id& id) {
    const auto next = id.connection ? id.connection->deadline() : std::nullopt;
    if (next == id.deadline) return;
    if (id.deadline) deadlines_.erase({*id.deadline, &id});
    id.deadline = next;
    if (next) deadlines_.insert({*next, &id});
}

int Manager::tick() noexcept {
    const std::lock_guard guard{mutex_};
    const Time now = base::Clock::now();
    try {
        seek_listeners(now);
        if (now >= hears_again_) {
            for (Id* const listener : std::exchange(deaf_, {})) {
                static_cast<void>(engine_.watch(listener->socket.get(), listener->watch));
            }
        }
        while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
            Id& id = *deadlines_.begin()->second;
            follow(id, id.connection->expire(now));
        }
    } catch (const std::bad_alloc&) {
        base::log(base::LogLevel::error, "cm", "no memory for an event of a connection");
    }
    if (!unheard_.empty()) return listener_pause_ms;
    if (deaf_.empty()) return deadline_lateness_ms;  // deadlines are seconds away
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(hears_again_ - now).count();
    return static_cast<int>(std::clamp<long>(left, 1, deadline_lateness_ms));
}

// --- sockets ------------------------------------------------------------------------------------

void Manager::watch_socket(Id& id, SocketUse use) {
    id.socket_use = use;
    id.watch = ++last_watch_;
    watched_.emplace(id.watch, &id);
    if (const int error = engine_.watch(id.socket.get(), id.watch)) {
        base::log(base::LogLevel::error, "cm", "watch the socket of {}: {}", id.source.text(),
                  std::strerror(error));
    }
}

void Manager::unwatch_socket(Id& id) noexcept {
    if (id.socket_use == SocketUse::listener || id.socket_use == SocketUse::carrier) {
        engine_.forget(id.socket.get());
        watched_.erase(id.watch);
    }
    id.socket.close();
    id.socket_use = SocketUse::gone;
}

/// Its last word, if it has one; who is told by the carrier's end alone knows what that means.
void Manager::close_connection(Id& id) noexcept {
    if (id.connection) {
        const Step last = id.connection->close(base::Clock::now());
        if (last.mad && id.socket_use == SocketUse::carrier) put(id, *last.mad);
        id.connection.reset();
    }
    if (id.deadline) deadlines_.erase({*id.deadline, &id});
    id.deadline.reset();
    unheard_.erase(&id);
    deaf_.erase(&id);
    std::erase_if(newcomers_, [&](auto& one) {
        if (one.second.listener != &id) return false;
        engine_.forget(one.second.socket.get());
        return true;
    });
    unwatch_socket(id);
}

void Manager::look(std::uint64_t watch) noexcept {
    const std::lock_guard guard{mutex_};
    try {
        if (newcomers_.contains(watch)) {
            read_request(watch);
        } else if (const auto found = watched_.find(watch); found != watched_.end()) {
            Id& id = *found->second;
            id.socket_use == SocketUse::listener ? take_carriers(id) : read_carrier(id);
        }
    } catch (const std::bad_alloc&) {
        base::log(base::LogLevel::error, "cm", "no memory for what a peer sent");
    }
}

/// It takes no carriers for so long.
void Manager::rest(Id& listener, int milliseconds) {
    engine_.forget(listener.socket.get());
    deaf_.insert(&listener);
    hears_again_ = base::Clock::now() + std::chrono::milliseconds{milliseconds};
}

void Manager::take_carriers(Id& listener) {
    for (int i = 0; i < most_at_once; ++i) {
        soft::Descriptor carrier{
            ::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        base::count_system_call();
        if (!carrier) {
            // It would be reported again and again.
            if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return;
            if (!std::exchange(told_of_descriptors_, true)) {
                base::log(base::LogLevel::warn, "cm",
                          "take a client of {}: {}; it waits until there are descriptors again",
                          listener.source.text(), std::strerror(errno));
            }
            return rest(listener, deadline_lateness_ms);
        }
        // So nobody else can keep the program's commands from the lock.
        if (!is_of_user(carrier.get(), listener.realm.user)) {
            return rest(listener, listener_pause_ms);
        }
        push_out_the_silent();
        const std::uint64_t watch = ++last_watch_;
        const int socket = carrier.get();
        newcomers_.emplace(watch, Newcomer{std::move(carrier), &listener});
        if (engine_.watch(socket, watch) != 0) newcomers_.erase(watch);
    }
}

/// Who connects and says nothing makes room for others.
void Manager::push_out_the_silent() noexcept {
    const auto is_silent = [](const auto& one) { return !one.second.waits; };
    const auto silent = std::count_if(newcomers_.begin(), newcomers_.end(), is_silent);
    if (static_cast<std::size_t>(silent) < most_newcomers) return;
    const auto oldest = std::find_if(newcomers_.begin(), newcomers_.end(), is_silent);
    engine_.forget(oldest->second.socket.get());
    newcomers_.erase(oldest);
}

/// The program has taken a request: there is room for one that waits.
void Manager::let_one_in(const Id& listener) {
    for (auto& [watch, newcomer] : newcomers_) {
        if (newcomer.listener != &listener || !newcomer.waits) continue;
        newcomer.waits = false;
        static_cast<void>(engine_.watch(newcomer.socket.get(), watch));
        return;
    }
}

/// The first message of a carrier. A request for which the listener has no place waits unread.
void Manager::read_request(std::uint64_t watch) {
    Newcomer& newcomer = newcomers_.at(watch);
    Id& listener = *newcomer.listener;
    const auto drop = [&] {
        engine_.forget(newcomer.socket.get());
        newcomers_.erase(watch);
        let_one_in(listener);
    };
    if (listener.requests_left == 0) {
        newcomer.waits = true;
        engine_.forget(newcomer.socket.get());
        return;
    }
    MadBytes bytes{};
    const ssize_t got = read_message(newcomer.socket.get(), bytes);
    if (got < 0) return;
    if (got == 0) return drop();
    const auto mad = decode({bytes.data(), static_cast<std::size_t>(got)});
    if (!mad) return drop();
    std::uint64_t service = 0;
    std::optional<AddressHeader> header;
    if (const auto* const req = std::get_if<Req>(&mad->body)) {
        service = req->service_id;
        header = address_header_of(req->private_data);
    } else if (const auto* const sidr = std::get_if<SidrReq>(&mad->body)) {
        service = sidr->service_id;
        header = address_header_of(sidr->private_data);
    }
    if (!header || service != service_id(listener.realm.space, listener.source.port())) {
        if (const auto answer = refuse(*mad)) {
            const MadBytes refusal = encode(*answer);
            ::send(newcomer.socket.get(), refusal.data(), refusal.size(),
                   MSG_DONTWAIT | MSG_NOSIGNAL);
        }
        return drop();
    }
    auto id = std::make_unique<Id>();
    id->realm = listener.realm;
    id->type = listener.type;
    id->state = IdState::connecting;
    id->has_device = id->has_path = true;
    id->source = address_of(*header, header->destination, listener.source.port());
    id->destination = address_of(*header, header->source, header->source_port);
    id->starting_psn = static_cast<std::uint32_t>(base::random_bits()) & 0xffffff;
    id->connection.emplace(new_comm_id(), be64toh(device_port().guid));
    Step step = id->connection->receive(*mad, base::Clock::now());
    if (!step.event) return drop();
    QueuedEvent queued;
    queued.about = &listener;
    queued.response.uid = listener.uid;
    queued.response.event = static_cast<std::uint32_t>(step.event->kind);
    if (id->type == IBV_QPT_UD) {
        fill_datagrams(queued.response.param.ud, *step.event, *id);
    } else {
        fill_connection(queued.response.param.conn, *step.event);
    }
    engine_.forget(newcomer.socket.get());
    id->socket = std::move(newcomer.socket);
    newcomers_.erase(watch);
    watch_socket(*id, SocketUse::carrier);
    step.event.reset();
    follow(*id, step);
    --listener.requests_left;
    queued.request = std::move(id);
    queue(*listener.channel, std::move(queued));
}

void Manager::read_carrier(Id& id) {
    for (int i = 0; i < most_at_once && id.socket_use == SocketUse::carrier; ++i) {
        MadBytes bytes{};
        const ssize_t got = read_message(id.socket.get(), bytes);
        if (got < 0) return;
        if (got == 0) return hang_up(id);
        const auto mad = decode({bytes.data(), static_cast<std::size_t>(got)});
        if (mad) follow(id, id.connection->receive(*mad, base::Clock::now()));
    }
}

void Manager::hang_up(Id& id) {
    unwatch_socket(id);
    follow(id, id.connection->hang_up(base::Clock::now()));
}

}  // namespace millrace::cm
