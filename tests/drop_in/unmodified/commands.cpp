// Every command of rdma_cm, as librdmacm gives it, with right and with wrong arguments, both ends
// in one process. It says what came of each in one line, and knows nothing of the device: the same
// program runs over the kernel's rdma_cm (scripts/kernel-tests.list) and on the soft device
// (commands_test.cpp), and both have to say the same, but for what commands.differences lists.
//
//   commands ADDRESS        an IPv4 address of the device that is to be used
#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace {

constexpr int patience_ms = 10'000;
const char* device_address;

void say(const char* step, int result) {
    std::printf("%s: %s\n", step, result == 0 ? "ok" : strerrorname_np(errno));
}

struct SocketAddress {
    sockaddr_storage storage{};
    explicit SocketAddress(const char* host, int port = 0) {
        if (std::strchr(host, ':') != nullptr) {
            auto& plain = reinterpret_cast<sockaddr_in6&>(storage);
            plain.sin6_family = AF_INET6;
            plain.sin6_port = htons(static_cast<std::uint16_t>(port));
            inet_pton(AF_INET6, host, &plain.sin6_addr);
        } else {
            auto& plain = reinterpret_cast<sockaddr_in&>(storage);
            plain.sin_family = AF_INET;
            plain.sin_port = htons(static_cast<std::uint16_t>(port));
            inet_pton(AF_INET, host, &plain.sin_addr);
        }
    }
    sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

/// What is said has to last as long as this.
rdma_conn_param with(const std::string& data) {
    rdma_conn_param param{};
    param.responder_resources = 1;
    param.initiator_depth = 1;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    param.private_data = data.data();
    param.private_data_len = static_cast<std::uint8_t>(data.size());
    return param;
}

class Channel {
  public:
    Channel() : channel_{rdma_create_event_channel()} {}
    rdma_event_channel* get() const { return channel_; }
    void close() { rdma_destroy_event_channel(channel_); }

    rdma_cm_id* create(rdma_port_space space = RDMA_PS_TCP) const {
        rdma_cm_id* id = nullptr;
        if (rdma_create_id(channel_, &id, nullptr, space) != 0) std::perror("rdma_create_id");
        return id;
    }

    /// Says the next event. The id of a request, or the event's own.
    rdma_cm_id* next(const char* step) const {
        pollfd at{channel_->fd, POLLIN, 0};
        rdma_cm_event* event = nullptr;
        if (poll(&at, 1, patience_ms) != 1) {
            std::printf("%s: no event\n", step);
            return nullptr;
        }
        if (rdma_get_cm_event(channel_, &event) != 0) {
            say(step, -1);
            return nullptr;
        }
        const bool is_datagram = event->id->ps == RDMA_PS_UDP;
        const auto* const data = static_cast<const char*>(
            is_datagram ? event->param.ud.private_data : event->param.conn.private_data);
        const unsigned length =
            is_datagram ? event->param.ud.private_data_len : event->param.conn.private_data_len;
        std::printf("%s: %s status %d, %u bytes '%.*s'\n", step, rdma_event_str(event->event),
                    event->status, length,
                    data == nullptr ? 0 : static_cast<int>(strnlen(data, length)),
                    data == nullptr ? "" : data);
        rdma_cm_id* const id = event->id;
        rdma_ack_cm_event(event);
        return id;
    }

  private:
    rdma_event_channel* channel_;
};

bool make_queue_pair(rdma_cm_id* id) {
    ibv_qp_init_attr attributes{};
    attributes.qp_type = id->ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
    attributes.cap = {4, 4, 1, 1, 0};
    if (rdma_create_qp(id, nullptr, &attributes) == 0) return true;
    std::perror("rdma_create_qp");
    return false;
}

/// Goes so far that it can connect, and says nothing if that is well.
rdma_cm_id* routed(const Channel& channel, int port, rdma_port_space space = RDMA_PS_TCP) {
    rdma_cm_id* const id = channel.create(space);
    SocketAddress to{device_address, port};
    for (const int turn : {0, 1}) {
        const int result = turn == 0 ? rdma_resolve_addr(id, nullptr, to.get(), patience_ms)
                                     : rdma_resolve_route(id, patience_ms);
        rdma_cm_event* event = nullptr;
        if (result != 0 || rdma_get_cm_event(channel.get(), &event) != 0 || event->status != 0) {
            std::printf("resolve %s: failed\n", turn == 0 ? "address" : "route");
        }
        if (event != nullptr) rdma_ack_cm_event(event);
    }
    make_queue_pair(id);
    return id;
}

rdma_cm_id* listener(const Channel& channel, rdma_port_space space = RDMA_PS_TCP) {
    rdma_cm_id* const id = channel.create(space);
    SocketAddress any{"0.0.0.0"};
    if (rdma_bind_addr(id, any.get()) != 0 || rdma_listen(id, 8) != 0) std::perror("listen");
    return id;
}
int port_of(rdma_cm_id* id) { return ntohs(rdma_get_src_port(id)); }

void destroy(rdma_cm_id* id) {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    rdma_destroy_id(id);
}

void options(rdma_cm_id* id) {
    std::uint8_t byte = 20;
    int word = 1;
    say("option TOS", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
    say("option TOS of four bytes",
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &word, 4));
    say("option ack timeout",
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
    say("option reuse address",
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &word, sizeof word));
    say("option reuse address of a byte",
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, 1));
    say("option family only",
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &word, sizeof word));
    say("option TOS at a wrong address",
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, reinterpret_cast<void*>(8), 1));
    say("option 99", rdma_set_option(id, RDMA_OPTION_ID, 99, &word, sizeof word));
    say("option of level 9", rdma_set_option(id, 9, 0, &word, sizeof word));
    say("option IB path of no length",
        rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &word, 0));
}

void fresh_ids(const Channel& channel) {
    rdma_cm_id* id = nullptr;
    say("create of port space 0x4711",
        rdma_create_id(channel.get(), &id, nullptr, static_cast<rdma_port_space>(0x4711)));
    const int made = rdma_create_id(channel.get(), &id, nullptr, RDMA_PS_IPOIB);
    say("create of port space IPOIB", made);
    if (made == 0) rdma_destroy_id(id);
    fcntl(channel.get()->fd, F_SETFL, O_NONBLOCK);
    rdma_cm_event* event = nullptr;
    say("event of none, not blocking", rdma_get_cm_event(channel.get(), &event));
    fcntl(channel.get()->fd, F_SETFL, 0);
    id = channel.create();
    std::printf("source port of none: %d\n", port_of(id));
    say("establish of a fresh id", rdma_establish(id));
    say("reject of a fresh id", rdma_reject(id, nullptr, 0));
    say("disconnect of a fresh id", rdma_disconnect(id));
    say("notify of a fresh id", rdma_notify(id, IBV_EVENT_COMM_EST));
    ibv_qp_attr attributes{};
    int mask = 0;
    attributes.qp_state = IBV_QPS_INIT;
    say("queue pair of a fresh id", rdma_init_qp_attr(id, &attributes, &mask));
    options(id);
    rdma_destroy_id(id);
    id = channel.create();
    say("listen of a fresh id", rdma_listen(id, 0));
    std::printf("it has a port: %s\n", port_of(id) != 0 ? "yes" : "no");
    say("listen again", rdma_listen(id, 0));
    rdma_destroy_id(id);
}

void binding(const Channel& channel) {
    rdma_cm_id* const id = channel.create();
    sockaddr nothing{};
    say("bind to no family", rdma_bind_addr(id, &nothing));
    say("bind to another host", rdma_bind_addr(id, SocketAddress{"192.0.2.254"}.get()));
    say("bind to a group", rdma_bind_addr(id, SocketAddress{"239.1.2.3"}.get()));
    say("bind to the device", rdma_bind_addr(id, SocketAddress{device_address}.get()));
    std::printf("it knows its device: %s\n", id->verbs != nullptr ? "yes" : "no");
    std::printf("its address has family: %d\n", rdma_get_local_addr(id)->sa_family);
    std::printf("its peer's address has family: %d\n", rdma_get_peer_addr(id)->sa_family);
    say("bind again", rdma_bind_addr(id, SocketAddress{device_address}.get()));
    const int port = port_of(id);
    rdma_cm_id* other = channel.create();
    say("bind a second to its port",
        rdma_bind_addr(other, SocketAddress{device_address, port}.get()));
    say("bind a second to its port at any",
        rdma_bind_addr(other, SocketAddress{"0.0.0.0", port}.get()));
    rdma_destroy_id(other);
    rdma_cm_id* one = channel.create();
    other = channel.create();
    int on = 1;
    rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on);
    say("bind who would share", rdma_bind_addr(one, SocketAddress{device_address}.get()));
    const int shared = port_of(one);
    say("bind who would not", rdma_bind_addr(other, SocketAddress{device_address, shared}.get()));
    rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on);
    say("bind another who would share",
        rdma_bind_addr(other, SocketAddress{device_address, shared}.get()));
    say("listen where another shares", rdma_listen(one, 1));
    rdma_destroy_id(other);
    say("listen alone", rdma_listen(one, 1));
    rdma_destroy_id(one);
    one = channel.create();
    other = channel.create();
    say("bind who will share", rdma_bind_addr(one, SocketAddress{device_address}.get()));
    say("share once bound",
        rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
    rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on);
    say("bind another to what is shared since",
        rdma_bind_addr(other, SocketAddress{device_address, port_of(one)}.get()));
    rdma_destroy_id(other);
    rdma_destroy_id(one);
    other = channel.create(RDMA_PS_UDP);
    say("bind datagrams to its port",
        rdma_bind_addr(other, SocketAddress{device_address, port}.get()));
    rdma_destroy_id(other);
    rdma_destroy_id(id);
    rdma_cm_id* const six = channel.create();
    say("bind to any of IPv6", rdma_bind_addr(six, SocketAddress{"::"}.get()));
    other = channel.create();
    say("bind to its port, IPv4",
        rdma_bind_addr(other, SocketAddress{"0.0.0.0", port_of(six)}.get()));
    rdma_destroy_id(six);
    rdma_destroy_id(other);
}

void resolving(const Channel& channel) {
    rdma_cm_id* id = channel.create();
    say("resolve from another family's address",
        rdma_resolve_addr(id, SocketAddress{"::1"}.get(), SocketAddress{device_address, 7}.get(),
                          1000));
    rdma_destroy_id(id);
    id = channel.create();
    const int begun = rdma_resolve_addr(id, nullptr, SocketAddress{"192.0.2.254", 7}.get(), 1000);
    say("resolve another host", begun);
    if (begun == 0) {
        channel.next("another host");
    } else {
        std::printf("another host: no event\n");
    }
    rdma_destroy_id(id);
    id = channel.create();
    say("resolve", rdma_resolve_addr(id, nullptr, SocketAddress{device_address, 7}.get(), 1000));
    channel.next("resolved");
    std::printf("it knows its device: %s\n", id->verbs != nullptr ? "yes" : "no");
    std::printf("destination port: %d\n", ntohs(rdma_get_dst_port(id)));
    say("resolve again",
        rdma_resolve_addr(id, nullptr, SocketAddress{device_address, 7}.get(), 1000));
    say("connect before the route", [&] {
        rdma_conn_param param = with("");
        return rdma_connect(id, &param);
    }());
    say("route", rdma_resolve_route(id, 1000));
    channel.next("routed");
    std::printf("paths: %d\n", id->route.num_paths);
    say("route again", rdma_resolve_route(id, 1000));
    say("listen of a routed id", rdma_listen(id, 1));
    rdma_destroy_id(id);
}

void masks(rdma_cm_id* id, const char* whose) {
    for (const int state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD}) {
        ibv_qp_attr attributes{};
        attributes.qp_state = static_cast<ibv_qp_state>(state);
        int mask = 0;
        const int result = rdma_init_qp_attr(id, &attributes, &mask);
        std::printf("queue pair %s to state %d: %s, mask %x\n", whose, state,
                    result == 0 ? "ok" : strerrorname_np(errno), static_cast<unsigned>(mask));
    }
}

/// A connection whose two ids are given back; says each step.
struct Pair {
    rdma_cm_id* active;
    rdma_cm_id* passive;
};
Pair connect(const Channel& client, const Channel& server, int port, bool speaks) {
    rdma_cm_id* const active = routed(client, port);
    const std::string long_request(57, 'x');
    rdma_conn_param param = with(long_request);
    if (speaks) say("connect with 57 bytes", rdma_connect(active, &param));
    const std::string hello = "hello";
    param = with(hello);
    say("connect", rdma_connect(active, &param));
    rdma_cm_id* const passive = server.next("request");
    make_queue_pair(passive);
    if (speaks) {
        std::printf("it names the client's port: %s\n",
                    rdma_get_dst_port(passive) == rdma_get_src_port(active) ? "yes" : "no");
    }
    const std::string welcome = "welcome";
    param = with(welcome);
    say("accept", rdma_accept(passive, &param));
    client.next("client is told");
    server.next("server is told");
    return {active, passive};
}

void connections(const Channel& client, const Channel& server) {
    rdma_cm_id* const at = listener(server);
    const int port = port_of(at);
    Pair pair = connect(client, server, port, true);
    masks(pair.active, "of the client");
    masks(pair.passive, "of the server");
    rdma_conn_param param = with("");
    say("connect a connected id", rdma_connect(pair.active, &param));
    say("notify of a connected id", rdma_notify(pair.passive, IBV_EVENT_COMM_EST));
    say("notify of another event", rdma_notify(pair.passive, IBV_EVENT_QP_FATAL));
    say("disconnect", rdma_disconnect(pair.active));
    server.next("server hears of the disconnect");
    say("disconnect back", rdma_disconnect(pair.passive));
    client.next("client hears of the disconnect");
    destroy(pair.active);
    destroy(pair.passive);

    std::printf("-- the server's id is destroyed\n");
    pair = connect(client, server, port, false);
    destroy(pair.passive);
    client.next("client hears of the destroy");
    destroy(pair.active);

    std::printf("-- the client's channel is closed\n");
    Channel short_lived;
    pair = connect(short_lived, server, port, false);
    rdma_destroy_qp(pair.active);
    short_lived.close();
    server.next("server hears of the channel's end");
    destroy(pair.passive);

    std::printf("-- refusals\n");
    rdma_cm_id* id = routed(client, port);
    const std::string please = "please";
    param = with(please);
    say("connect", rdma_connect(id, &param));
    rdma_cm_id* request = server.next("request");
    const std::string reason = "no, thanks";
    say("reject with 149 bytes", rdma_reject(request, std::string(149, 'x').data(), 149));
    say("reject", rdma_reject(request, reason.data(), static_cast<std::uint8_t>(reason.size())));
    client.next("client is refused");
    destroy(id);
    rdma_destroy_id(request);
    id = routed(client, port);
    say("connect", rdma_connect(id, &param));
    request = server.next("request");
    make_queue_pair(request);
    const std::string long_answer(197, 'x');
    rdma_conn_param too_long = with(long_answer);
    say("accept with 197 bytes", rdma_accept(request, &too_long));
    client.next("client is told");
    destroy(request);
    destroy(id);
    id = routed(client, port);
    say("connect", rdma_connect(id, &param));
    pollfd waiting{server.get()->fd, POLLIN, 0};
    poll(&waiting, 1, patience_ms);
    rdma_destroy_id(at);
    client.next("the listener ends with a request that it has not taken");
    destroy(id);
    id = routed(client, port);
    say("connect to nobody", rdma_connect(id, &param));
    client.next("nobody listens");
    destroy(id);
}

void migration(const Channel& from, const Channel& to) {
    rdma_cm_id* const id = from.create();
    say("resolve", rdma_resolve_addr(id, nullptr, SocketAddress{device_address, 7}.get(), 1000));
    pollfd waiting{from.get()->fd, POLLIN, 0};
    poll(&waiting, 1, patience_ms);
    say("migrate", rdma_migrate_id(id, to.get()));
    to.next("its event came along");
    rdma_destroy_id(id);
}

void synchronous_ids() {
    rdma_cm_id* id = nullptr;
    say("create without a channel", rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP));
    say("resolve", rdma_resolve_addr(id, nullptr, SocketAddress{device_address, 7}.get(), 1000));
    say("route", rdma_resolve_route(id, 1000));
    make_queue_pair(id);
    rdma_conn_param param = with("");
    say("connect to nobody", rdma_connect(id, &param));
    rdma_destroy_qp(id);
    rdma_destroy_id(id);
}

void datagrams(const Channel& client, const Channel& server) {
    rdma_cm_id* const at = listener(server, RDMA_PS_UDP);
    const int port = port_of(at);
    for (const bool accepts : {true, false}) {
        rdma_cm_id* const id = routed(client, port, RDMA_PS_UDP);
        const std::string hello = "hello";
        rdma_conn_param param = with(hello);
        say("connect", rdma_connect(id, &param));
        rdma_cm_id* const request = server.next("request");
        make_queue_pair(request);
        const std::string answer = accepts ? "welcome" : "no, thanks";
        param = with(answer);
        param.qp_num = request->qp->qp_num;
        if (accepts) {
            say("accept", rdma_accept(request, &param));
        } else {
            say("reject",
                rdma_reject(request, answer.data(), static_cast<std::uint8_t>(answer.size())));
        }
        client.next("client is told");
        say("disconnect", rdma_disconnect(id));
        destroy(id);
        destroy(request);
    }
    rdma_destroy_id(at);
}

void groups(const Channel& channel) {
    rdma_cm_id* id = channel.create();
    rdma_bind_addr(id, SocketAddress{device_address}.get());
    say("join of a connected type",
        rdma_join_multicast(id, SocketAddress{"239.1.2.3"}.get(), nullptr));
    rdma_destroy_id(id);
    id = channel.create(RDMA_PS_UDP);
    say("join without a device",
        rdma_join_multicast(id, SocketAddress{"239.1.2.3"}.get(), nullptr));
    rdma_bind_addr(id, SocketAddress{device_address}.get());
    make_queue_pair(id);
    say("join", rdma_join_multicast(id, SocketAddress{"239.1.2.3"}.get(), nullptr));
    channel.next("joined");
    say("leave", rdma_leave_multicast(id, SocketAddress{"239.1.2.3"}.get()));
    say("leave again", rdma_leave_multicast(id, SocketAddress{"239.1.2.3"}.get()));
    destroy(id);
}

}  // namespace

int main(int count, char** words) {
    if (count != 2) {
        std::fprintf(stderr, "commands ADDRESS\n");
        return 2;
    }
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    device_address = words[1];
    Channel client;
    Channel server;
    if (client.get() == nullptr || server.get() == nullptr) {
        std::perror("rdma_create_event_channel");
        return 1;
    }
    std::printf("-- fresh ids\n");
    fresh_ids(client);
    std::printf("-- binding\n");
    binding(client);
    std::printf("-- resolving\n");
    resolving(client);
    std::printf("-- connections\n");
    connections(client, server);
    std::printf("-- migration\n");
    migration(client, server);
    std::printf("-- synchronous ids\n");
    synchronous_ids();
    std::printf("-- datagrams\n");
    datagrams(client, server);
    std::printf("-- groups\n");
    groups(client);
    client.close();
    server.close();
    return 0;
}
