// A program of librdmacm's, as the manager sees it: the commands that it writes into a channel and
// the events that it takes. For the tests in this folder.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <rdma/rdma_user_cm.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "manager.hpp"
#include "support/child_process.hpp"

namespace millrace::cm {

inline constexpr std::uint32_t address_resolved = 0;
inline constexpr std::uint32_t address_error = 1;
inline constexpr std::uint32_t route_resolved = 2;
inline constexpr std::uint32_t connect_request = 4;
inline constexpr std::uint32_t connect_response = 5;
inline constexpr std::uint32_t rejected = 8;
inline constexpr std::uint32_t established = 9;
inline constexpr std::uint32_t disconnected = 10;
inline constexpr std::uint32_t multicast_join = 12;

inline sockaddr_in6 address(const char* host, std::uint16_t port) {
    sockaddr_in6 storage{};
    sockaddr_in plain{};
    plain.sin_family = AF_INET;
    plain.sin_port = htons(port);
    ::inet_pton(AF_INET, host, &plain.sin_addr);
    std::memcpy(&storage, &plain, sizeof plain);
    return storage;
}

/// What librdmacm does with one channel. Every call returns 0 or the errno.
class Program {
  public:
    Program() : descriptor_{Manager::own().open_channel()} {}
    ~Program() { close(); }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    void close() {
        if (descriptor_ < 0) return;
        Manager::own().close_channel(descriptor_);
        ::close(std::exchange(descriptor_, -1));
    }
    [[nodiscard]] int descriptor() const { return descriptor_; }
    [[nodiscard]] bool is_readable() const {
        pollfd at{descriptor_, POLLIN, 0};
        return ::poll(&at, 1, 0) == 1;
    }

    template <class Command>
    int command(std::uint32_t number, const Command& command, std::uint16_t room = 0) {
        struct {
            rdma_ucm_cmd_hdr header;
            Command body;
        } whole{{number, sizeof command, room}, command};
        const ssize_t done = Manager::own().write_command(descriptor_, &whole, sizeof whole);
        if (done < 0) return errno;
        EXPECT_EQ(done, static_cast<ssize_t>(sizeof whole));
        return 0;
    }
    template <class Command, class Answer>
    int command(std::uint32_t number, Command body, Answer& answer) {
        body.response = reinterpret_cast<std::uint64_t>(&answer);
        return command(number, body, static_cast<std::uint16_t>(sizeof answer));
    }

    /// `uid` is what events of it bear.
    std::uint32_t create(std::uint64_t uid, std::uint16_t space = RDMA_PS_TCP) {
        rdma_ucm_create_id body{};
        body.uid = uid;
        body.ps = space;
        body.qp_type = IBV_QPT_RC;
        rdma_ucm_create_id_resp answer{};
        EXPECT_EQ(command(RDMA_USER_CM_CMD_CREATE_ID, body, answer), 0);
        return answer.id;
    }
    /// The count of its reported events, or the errno, negative.
    int destroy(std::uint32_t id) { return end(RDMA_USER_CM_CMD_DESTROY_ID, id); }
    int bind(std::uint32_t id, const sockaddr_in6& to) {
        rdma_ucm_bind_ip body{};
        body.addr = to;
        body.id = id;
        return command(RDMA_USER_CM_CMD_BIND_IP, body);
    }
    int listen(std::uint32_t id, std::uint32_t backlog = 0) {
        return command(RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen{id, backlog});
    }
    int resolve(std::uint32_t id, const sockaddr_in6& to) {
        rdma_ucm_resolve_ip body{};
        body.dst_addr = to;
        body.id = id;
        return command(RDMA_USER_CM_CMD_RESOLVE_IP, body);
    }
    int resolve_route(std::uint32_t id) {
        return command(RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route{id, 1000});
    }
    int connect(std::uint32_t id, const std::string& said = {}) {
        rdma_ucm_connect body{};
        body.id = id;
        body.conn_param = parameters(said);
        return command(RDMA_USER_CM_CMD_CONNECT, body);
    }
    int accept(std::uint32_t id, std::uint64_t uid, const std::string& said = {}) {
        rdma_ucm_accept body{};
        body.id = id;
        body.uid = uid;
        body.conn_param = parameters(said);
        return command(RDMA_USER_CM_CMD_ACCEPT, body);
    }
    /// As librdmacm answers CONNECT_RESPONSE.
    int confirm(std::uint32_t id) {
        rdma_ucm_accept body{};
        body.id = id;
        return command(RDMA_USER_CM_CMD_ACCEPT, body);
    }
    int reject(std::uint32_t id, const std::string& said = {}) {
        rdma_ucm_reject body{};
        body.id = id;
        body.private_data_len = static_cast<std::uint8_t>(said.size());
        std::memcpy(body.private_data, said.data(), said.size());
        return command(RDMA_USER_CM_CMD_REJECT, body);
    }
    int disconnect(std::uint32_t id) {
        return command(RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect{id});
    }
    int join(std::uint32_t id, std::uint64_t uid, const sockaddr_in6& group,
             rdma_ucm_create_id_resp& answer) {
        rdma_ucm_join_ip_mcast body{};
        body.uid = uid;
        body.addr = group;
        body.id = id;
        return command(RDMA_USER_CM_CMD_JOIN_IP_MCAST, body, answer);
    }
    int leave(std::uint32_t membership) { return end(RDMA_USER_CM_CMD_LEAVE_MCAST, membership); }
    int set_option(std::uint32_t id, std::uint32_t name, int value, std::uint32_t size = 4) {
        rdma_ucm_set_option body{};
        body.id = id;
        body.optname = name;
        body.optval = reinterpret_cast<std::uint64_t>(&value);
        body.optlen = size;
        return command(RDMA_USER_CM_CMD_SET_OPTION, body);
    }
    int queue_pair(std::uint32_t id, std::uint32_t state, ib_uverbs_qp_attr& answer) {
        rdma_ucm_init_qp_attr body{};
        body.id = id;
        body.qp_state = state;
        return command(RDMA_USER_CM_CMD_INIT_QP_ATTR, body, answer);
    }
    int get_event(rdma_ucm_event_resp& event) {
        return command(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, event);
    }
    /// The next one, which comes.
    rdma_ucm_event_resp event() {
        pollfd at{descriptor_, POLLIN, 0};
        rdma_ucm_event_resp event{};
        const int count = ::poll(&at, 1, static_cast<int>(test::patience.count()));
        EXPECT_EQ(count, 1);
        if (count != 1) return event;
        EXPECT_EQ(get_event(event), 0);
        return event;
    }

    /// An id that goes on to connect to the port.
    std::uint32_t request(std::uint64_t uid, std::uint16_t port, const std::string& said = {}) {
        const std::uint32_t id = create(uid);
        EXPECT_EQ(resolve(id, address("127.0.0.1", port)), 0);
        EXPECT_EQ(event().event, address_resolved);
        EXPECT_EQ(resolve_route(id), 0);
        EXPECT_EQ(event().event, route_resolved);
        EXPECT_EQ(connect(id, said), 0);
        return id;
    }

  private:
    int end(std::uint32_t number, std::uint32_t name) {
        rdma_ucm_destroy_id body{};
        body.id = name;
        rdma_ucm_destroy_id_resp answer{};
        const int error = command(number, body, answer);
        return error == 0 ? static_cast<int>(answer.events_reported) : -error;
    }
    static rdma_ucm_conn_param parameters(const std::string& said) {
        rdma_ucm_conn_param to{};
        to.valid = 1;
        to.qp_num = 0x1234;
        to.responder_resources = 3;
        to.initiator_depth = 2;
        to.retry_count = 7;
        to.private_data_len = static_cast<std::uint8_t>(said.size());
        std::memcpy(to.private_data, said.data(), said.size());
        return to;
    }

    int descriptor_;
};

/// A listener's port that no other test process has: it is on another fabric.
inline constexpr std::uint16_t port = 7471;

}  // namespace millrace::cm
