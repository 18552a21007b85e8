// The connection manager of a process: what stands below librdmacm in place of the kernel's.
// It answers the commands that librdmacm writes into a channel, as the kernel does, and speaks with
// the connection managers of other processes of this user on this host, in MADs. Called by the
// drop-in, in place of librdmacm's open, write and close of /dev/infiniband/rdma_cm.
//
// One lock guards everything: no command waits for anything while it holds it, but GET_EVENT, which
// waits without. A command's answer is there before write() returns; what others say comes as an
// event. The engine's thread brings it.
//
//   program ─ librdmacm ─ write ─▶ Manager ─▶ Id ─▶ Connection ─ MAD ─▶ carrier (a socket) ─▶ peer
//                ▲                    │                 │
//                └── GET_EVENT ◀── Channel ◀── event ───┘
//
// Source: <rdma/rdma_user_cm.h> (ABI version 4).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "id.hpp"
#include "request.hpp"

namespace millrace::cm {

class Manager final : private Watcher {
  public:
    /// The one of this process. A child made by fork has its own, without its parent's channels.
    [[nodiscard]] static Manager& own();

    /// A new channel's descriptor; -1 with errno.
    [[nodiscard]] int open_channel() noexcept;
    /// True if `descriptor` is one, of this process or of the one that it was forked from.
    [[nodiscard]] bool has_channel(int descriptor) noexcept;
    /// As write(): `length`, or -1 with errno. GET_EVENT is a cancellation point.
    [[nodiscard]] ssize_t write_command(int descriptor, const void* bytes, std::size_t length);
    /// Ends its ids, as the kernel does when the file is closed; the caller closes the descriptor.
    void close_channel(int descriptor) noexcept;

  private:
    using Handler = int (Manager::*)(Channel&, const Request&);

    Manager() = default;
    /// In the child of a fork: what it has of its parent's is closed.
    [[nodiscard]] Manager* after_fork();
    struct Own;

    // Commands: 0 or an errno value.
    [[nodiscard]] static Handler handler_of(std::uint32_t command) noexcept;
    [[nodiscard]] int get_event(int descriptor, const Request& request);
    int create_id(Channel& channel, const Request& request);
    int destroy_id(Channel& channel, const Request& request);
    int migrate_id(Channel& channel, const Request& request);
    int bind_ip(Channel& channel, const Request& request);
    int bind(Channel& channel, const Request& request);
    int resolve_ip(Channel& channel, const Request& request);
    int resolve_address(Channel& channel, const Request& request);
    int resolve_route(Channel& channel, const Request& request);
    int query_route(Channel& channel, const Request& request);
    int query(Channel& channel, const Request& request);
    int listen(Channel& channel, const Request& request);
    int connect(Channel& channel, const Request& request);
    int accept(Channel& channel, const Request& request);
    int reject(Channel& channel, const Request& request);
    int refuse_request(Id& id, RejectReason reason, std::span<const std::uint8_t> data);
    int disconnect(Channel& channel, const Request& request);
    int init_queue_pair(Channel& channel, const Request& request);
    int set_option(Channel& channel, const Request& request);
    int notify(Channel& channel, const Request& request);
    int join_ip(Channel& channel, const Request& request);
    int join(Channel& channel, const Request& request);
    int join_group(Channel& channel, std::uint32_t handle, const Address& address,
                   std::uint64_t uid, std::uint64_t response, const Request& request);
    int leave(Channel& channel, const Request& request);

    // Ids.
    /// The channel's id of that name. Null: ENOENT, or EINVAL, as it is another channel's.
    struct Found {
        Id* id = nullptr;
        int error = 0;
    };
    [[nodiscard]] Found find(const Channel& channel, std::uint32_t handle) noexcept;
    /// Takes it, and gives it a name. False: there is none left.
    [[nodiscard]] bool enlist(std::unique_ptr<Id>& id, Channel& channel);
    /// How many of its events the program was given.
    std::uint32_t end(Id& id) noexcept;
    void drop_events_of(const Id& id) noexcept;
    void abandon(Channel& channel) noexcept;
    int bind_to(Id& id, const Address& address);
    int resolve(Id& id, const Address* source, const Address& destination);

    // Events.
    void queue(Channel& channel, QueuedEvent event);
    void tell(Id& id, std::uint32_t kind, int status);
    void give(Id& id, const Event& event);
    void show_news(const Channel& channel) noexcept;

    // Connections.
    void follow(Id& id, const Step& step);
    void send(Id& id, const Mad& mad);
    void put(const Id& id, const Mad& mad) noexcept;
    [[nodiscard]] bool reach_listener(Id& id, const Mad& mad);
    void seek_listeners(Time now);
    void note_deadline(Id& id);
    void watch_socket(Id& id, SocketUse use);
    void unwatch_socket(Id& id) noexcept;
    void close_connection(Id& id) noexcept;
    void look(std::uint64_t watch) noexcept override;
    int tick() noexcept override;
    void take_carriers(Id& listener);
    void rest(Id& listener, int milliseconds);
    void read_request(std::uint64_t watch);
    void read_carrier(Id& id);
    void hang_up(Id& id);

    /// A carrier whose request was not taken yet.
    struct Newcomer {
        soft::Descriptor socket;
        Id* listener = nullptr;
        /// It has said something, which is not read, as the listener's backlog is full.
        bool waits = false;
    };
    void let_one_in(const Id& listener);
    void push_out_the_silent() noexcept;

    std::mutex mutex_;
    Engine engine_;
    std::unordered_map<int, std::unique_ptr<Channel>> channels_;
    std::set<int> inherited_;  ///< descriptors of channels that the parent opened
    /// By handle. The lowest free one is used next, as librdmacm's table has 65,536.
    std::vector<std::unique_ptr<Id>> ids_;
    std::set<std::uint32_t> free_handles_;
    /// By the name that LEAVE_MCAST says.
    std::map<std::uint32_t, std::unique_ptr<Membership>> memberships_;
    std::uint32_t next_membership_ = 0;
    std::uint64_t last_watch_ = 0;
    std::unordered_map<std::uint64_t, Id*> watched_;
    std::map<std::uint64_t, Newcomer> newcomers_;
    std::set<std::pair<Time, Id*>> deadlines_;
    std::set<Id*> unheard_;  ///< nobody listens where they want to connect
    std::set<Id*> deaf_;     ///< listeners for whose next carrier there was no descriptor
    Time hears_again_{};
    bool told_of_descriptors_ = false;
};

}  // namespace millrace::cm
