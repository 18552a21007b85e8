// The manager's channels, ids and events, and the commands for them; connections.cpp has what
// others send.
#include "manager.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "../soft/system/event_wait.hpp"
#include "millrace/base/detail/random.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::cm {
namespace {

constexpr std::size_t most_ids = 65'536;

/// Also where nobody can say.
[[nodiscard]] bool is_event_descriptor(int descriptor) noexcept {
    constexpr std::string_view event_file = "anon_inode:[eventfd]";
    const int error = errno;
    char path[32];
    char target[64];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    const auto length = ::syscall(SYS_readlinkat, AT_FDCWD, path, target, sizeof target);
    const bool gone = length < 0 && errno == ENOENT && ::access("/proc/self/fd", F_OK) == 0;
    errno = error;
    if (length < 0) return !gone;
    return std::string_view{target, static_cast<std::size_t>(length)} == event_file;
}

}  // namespace

// --- the process's own --------------------------------------------------------------------------

/// Held over fork, so that the child finds everything whole.
struct Manager::Own {
    static Manager*& instance() {
        static Manager* manager = [] {
            pthread_atfork([] { instance()->mutex_.lock(); }, [] { instance()->mutex_.unlock(); },
                           [] { instance() = instance()->after_fork(); });
            return new Manager;
        }();
        return manager;
    }
};

Manager& Manager::own() { return *Own::instance(); }

/// This object stays as it is: its lock is held for ever, and its parent's ids are no one's here.
Manager* Manager::after_fork() {
    auto* const manager = new Manager;
    manager->inherited_ = std::move(inherited_);
    for (const auto& [descriptor, channel] : channels_) manager->inherited_.insert(descriptor);
    // Or else nobody hears of the parent's end.
    engine_.become_copy();
    for (const auto& id : ids_) {
        if (id != nullptr) id->socket.close();
    }
    for (auto& [descriptor, channel] : channels_) {
        for (auto& event : channel->events) {
            if (event.request != nullptr) event.request->socket.close();
        }
    }
    for (auto& [watch, newcomer] : newcomers_) newcomer.socket.close();
    return manager;
}

// --- channels -----------------------------------------------------------------------------------

int Manager::open_channel() noexcept {
    const base::Uncancelled held;
    const std::lock_guard guard{mutex_};
    if (const int error = engine_.start(*this)) {
        errno = error;
        return -1;
    }
    const int descriptor = base::above_standard_streams(::eventfd(0, EFD_CLOEXEC));
    if (descriptor < 0) return -1;
    try {
        auto channel = std::make_unique<Channel>();
        channel->descriptor = descriptor;
        inherited_.erase(descriptor);
        // One of that number was closed behind our back.
        if (const auto stale = channels_.find(descriptor); stale != channels_.end()) {
            abandon(*stale->second);
        }
        channels_[descriptor] = std::move(channel);
    } catch (const std::bad_alloc&) {
        ::close(descriptor);
        errno = ENOMEM;
        return -1;
    }
    return descriptor;
}

bool Manager::has_channel(int descriptor) noexcept {
    const base::Uncancelled held;
    const std::lock_guard guard{mutex_};
    const auto found = channels_.find(descriptor);
    if (found == channels_.end() && !inherited_.contains(descriptor)) return false;
    if (is_event_descriptor(descriptor)) return true;
    // The program has closed it by itself, and has another file of that number.
    inherited_.erase(descriptor);
    if (found == channels_.end()) return false;
    abandon(*found->second);
    channels_.erase(found);
    return false;
}

/// Its descriptor's number is another file's: nothing may be read from that, or written to it.
void Manager::abandon(Channel& channel) noexcept {
    channel.descriptor = -1;
    while (!channel.ids.empty()) end(**channel.ids.begin());
}

void Manager::close_channel(int descriptor) noexcept {
    const base::Uncancelled held;
    const std::lock_guard guard{mutex_};
    inherited_.erase(descriptor);
    const auto found = channels_.find(descriptor);
    if (found == channels_.end()) return;
    while (!found->second->ids.empty()) end(**found->second->ids.begin());
    channels_.erase(found);
}

ssize_t Manager::write_command(int descriptor, const void* bytes, std::size_t length) {
    rdma_ucm_cmd_hdr header{};
    const auto fail = [](int error) {
        errno = error;
        return ssize_t{-1};
    };
    if (length < sizeof header) return fail(EINVAL);
    std::memcpy(&header, bytes, sizeof header);
    if (header.in + sizeof header > length) return fail(EINVAL);
    const Request request{{static_cast<const std::byte*>(bytes) + sizeof header, header.in},
                          header.out};
    int error = 0;
    if (header.cmd == RDMA_USER_CM_CMD_GET_EVENT) {
        error = get_event(descriptor, request);
    } else {
        const base::Uncancelled held;
        const std::lock_guard guard{mutex_};
        const auto found = channels_.find(descriptor);
        const Handler handler = handler_of(header.cmd);
        if (found == channels_.end()) {
            error = EACCES;  // as the kernel says to who is not who opened it
        } else if (header.cmd > RDMA_USER_CM_CMD_JOIN_MCAST) {
            error = EINVAL;
        } else if (handler == nullptr) {
            error = ENOSYS;
        } else {
            try {
                error = (this->*handler)(*found->second, request);
            } catch (const std::exception&) {
                error = ENOMEM;
            }
        }
    }
    return error == 0 ? static_cast<ssize_t>(length) : fail(error);
}

Manager::Handler Manager::handler_of(std::uint32_t command) noexcept {
    switch (command) {
        case RDMA_USER_CM_CMD_CREATE_ID: return &Manager::create_id;
        case RDMA_USER_CM_CMD_DESTROY_ID: return &Manager::destroy_id;
        case RDMA_USER_CM_CMD_BIND_IP: return &Manager::bind_ip;
        case RDMA_USER_CM_CMD_RESOLVE_IP: return &Manager::resolve_ip;
        case RDMA_USER_CM_CMD_RESOLVE_ROUTE: return &Manager::resolve_route;
        case RDMA_USER_CM_CMD_QUERY_ROUTE: return &Manager::query_route;
        case RDMA_USER_CM_CMD_CONNECT: return &Manager::connect;
        case RDMA_USER_CM_CMD_LISTEN: return &Manager::listen;
        case RDMA_USER_CM_CMD_ACCEPT: return &Manager::accept;
        case RDMA_USER_CM_CMD_REJECT: return &Manager::reject;
        case RDMA_USER_CM_CMD_DISCONNECT: return &Manager::disconnect;
        case RDMA_USER_CM_CMD_INIT_QP_ATTR: return &Manager::init_queue_pair;
        case RDMA_USER_CM_CMD_SET_OPTION: return &Manager::set_option;
        case RDMA_USER_CM_CMD_NOTIFY: return &Manager::notify;
        case RDMA_USER_CM_CMD_JOIN_IP_MCAST: return &Manager::join_ip;
        case RDMA_USER_CM_CMD_LEAVE_MCAST: return &Manager::leave;
        case RDMA_USER_CM_CMD_JOIN_MCAST: return &Manager::join;
        case RDMA_USER_CM_CMD_MIGRATE_ID: return &Manager::migrate_id;
        case RDMA_USER_CM_CMD_BIND: return &Manager::bind;
        case RDMA_USER_CM_CMD_RESOLVE_ADDR: return &Manager::resolve_address;
        case RDMA_USER_CM_CMD_QUERY: return &Manager::query;
        default: return nullptr;  // GET_OPTION the kernel has not, either
    }
}

// --- events -------------------------------------------------------------------------------------

int Manager::get_event(int descriptor, const Request& request) {
    constexpr std::size_t least = offsetof(rdma_ucm_event_resp, reserved);
    if (!request.has_room_for(least)) return ENOSPC;
    const auto to = request.as<rdma_ucm_get_event>().response;
    const base::Uncancelled held;
    for (;;) {
        {
            const std::lock_guard guard{mutex_};
            const auto found = channels_.find(descriptor);
            if (found == channels_.end()) return inherited_.contains(descriptor) ? EACCES : EBADF;
            Channel& channel = *found->second;
            if (!channel.events.empty()) {
                QueuedEvent& event = channel.events.front();
                if (event.request != nullptr) {
                    Id& request_id = *event.request;
                    try {
                        if (!enlist(event.request, channel)) return ENOMEM;
                    } catch (const std::bad_alloc&) {
                        return ENOMEM;
                    }
                    ++event.about->requests_left;
                    let_one_in(*event.about);
                    event.response.id = request_id.handle;
                }
                if (const int error = request.answer(to, event.response, least)) return error;
                ++event.about->events_reported;
                if (event.membership != nullptr) ++event.membership->events_reported;
                channel.events.pop_front();
                show_news(channel);
                return 0;
            }
        }
        const int flags = ::fcntl(descriptor, F_GETFL);
        if (flags < 0) return errno;
        if ((flags & O_NONBLOCK) != 0) return EAGAIN;
        pollfd news{descriptor, POLLIN, 0};
        if (soft::wait_for_news({&news, 1}, held) < 0) return errno;
        if ((news.revents & POLLNVAL) != 0) return EBADF;
    }
}

/// The descriptor is readable exactly while there is an event.
void Manager::show_news(const Channel& channel) noexcept {
    pollfd readable{channel.descriptor, POLLIN, 0};
    const bool shown = ::poll(&readable, 1, 0) == 1;
    if (shown == !channel.events.empty()) return;
    std::uint64_t value = 1;
    [[maybe_unused]] const ssize_t done = shown ? ::read(channel.descriptor, &value, sizeof value)
                                                : ::write(channel.descriptor, &value, sizeof value);
}

void Manager::queue(Channel& channel, QueuedEvent event) {
    channel.events.push_back(std::move(event));
    // Each is written, for who watches the descriptor by edges.
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(channel.descriptor, &one, sizeof one);
}

void Manager::tell(Id& id, std::uint32_t kind, int status) {
    if (id.uid == 0 || id.channel == nullptr) return;
    QueuedEvent event;
    event.about = &id;
    event.response.uid = id.uid;
    event.response.id = id.handle;
    event.response.event = kind;
    event.response.status = static_cast<std::uint32_t>(status);
    queue(*id.channel, std::move(event));
}

void Manager::drop_events_of(const Id& id) noexcept {
    auto& events = id.channel->events;
    for (auto& event : events) {
        if (event.about == &id && event.request != nullptr) close_connection(*event.request);
    }
    std::erase_if(events, [&](const QueuedEvent& event) { return event.about == &id; });
    show_news(*id.channel);
}

// --- ids ----------------------------------------------------------------------------------------

Manager::Found Manager::find(const Channel& channel, std::uint32_t handle) noexcept {
    if (handle >= ids_.size() || ids_[handle] == nullptr) return {nullptr, ENOENT};
    Id* const id = ids_[handle].get();
    if (id->channel != &channel) return {nullptr, EINVAL};
    return {id, 0};
}

bool Manager::enlist(std::unique_ptr<Id>& id, Channel& channel) {
    if (free_handles_.empty()) {
        if (ids_.size() == most_ids) return false;
        free_handles_.insert(static_cast<std::uint32_t>(ids_.size()));
        ids_.emplace_back();
    }
    channel.ids.insert(id.get());
    id->channel = &channel;
    id->handle = *free_handles_.begin();
    free_handles_.erase(free_handles_.begin());
    ids_[id->handle] = std::move(id);
    return true;
}

std::uint32_t Manager::end(Id& id) noexcept {
    drop_events_of(id);
    std::erase_if(memberships_, [&](const auto& one) { return one.second->id == &id; });
    close_connection(id);
    const std::uint32_t reported = id.events_reported;
    const std::uint32_t handle = id.handle;
    id.channel->ids.erase(&id);
    ids_[handle].reset();
    free_handles_.insert(handle);
    return reported;
}

int Manager::create_id(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_create_id>();
    if (!request.has_room_for(sizeof(rdma_ucm_create_id_resp))) return ENOSPC;
    auto id = std::make_unique<Id>();
    switch (command.ps) {
        case RDMA_PS_TCP: id->type = IBV_QPT_RC; break;
        case RDMA_PS_UDP: id->type = IBV_QPT_UD; break;
        case RDMA_PS_IB: id->type = static_cast<ibv_qp_type>(command.qp_type); break;
        case RDMA_PS_IPOIB:
            base::log(base::LogLevel::warn, "cm",
                      "create an id of port space IPOIB: the soft device has no IP over "
                      "InfiniBand; use RDMA_PS_UDP");
            return EOPNOTSUPP;
        default: return EINVAL;
    }
    if (id->type != IBV_QPT_RC && id->type != IBV_QPT_UC && id->type != IBV_QPT_UD) return EINVAL;
    try {
        id->realm = own_realm(static_cast<PortSpace>(command.ps));
    } catch (const base::Error& error) {
        base::log(base::LogLevel::error, "cm", "{}", error.what());
        return EINVAL;
    }
    id->uid = command.uid;
    id->starting_psn = static_cast<std::uint32_t>(base::random_bits()) & 0xffffff;
    const Id& made = *id;
    if (!enlist(id, channel)) return ENOMEM;
    return request.answer(command.response, rdma_ucm_create_id_resp{made.handle});
}

int Manager::destroy_id(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_destroy_id>();
    if (!request.has_room_for(sizeof(rdma_ucm_destroy_id_resp))) return ENOSPC;
    const auto [id, error] = find(channel, command.id);
    if (id == nullptr) return error;
    return request.answer(command.response, rdma_ucm_destroy_id_resp{end(*id)});
}

int Manager::migrate_id(Channel& channel, const Request& request) {
    const auto command = request.as<rdma_ucm_migrate_id>();
    const auto from = channels_.find(static_cast<int>(command.fd));
    if (from == channels_.end()) return ENOENT;
    const auto [id, error] = find(*from->second, command.id);
    if (id == nullptr) return error;
    if (&channel != from->second.get()) {
        channel.ids.insert(id);
        auto& events = from->second->events;
        const auto moved = std::stable_partition(
            events.begin(), events.end(),
            [id = id](const QueuedEvent& event) { return event.about != id; });
        std::move(moved, events.end(), std::back_inserter(channel.events));
        events.erase(moved, events.end());
        from->second->ids.erase(id);
        id->channel = &channel;
        show_news(*from->second);
        show_news(channel);
    }
    return request.answer(command.response, rdma_ucm_migrate_resp{id->events_reported});
}

}  // namespace millrace::cm
