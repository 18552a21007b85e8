// The drop-in's sockets and its epoll are the kernel's, whatever the program has preloaded.
// librspreload (rdma-core 65) stands before the C library's functions of these names and makes
// rsockets of what they are asked for: by librdmacm, which has just called the drop-in, and holds
// locks. What is defined in this library is not exported, and the linker binds the library's own
// calls to it. Other calls with these descriptors librspreload passes on.
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

extern "C" {

int own_socket(int domain, int type, int protocol) noexcept __asm__("socket");
int own_epoll(int flags) noexcept __asm__("epoll_create1");
int own_epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) noexcept
    __asm__("epoll_ctl");
/// No cancellation point, unlike the C library's: nothing here is cancelled while it sleeps in it.
int own_epoll_wait(int epoll, epoll_event* events, int room, int milliseconds) noexcept
    __asm__("epoll_wait");

int own_socket(int domain, int type, int protocol) noexcept {
    return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}

int own_epoll(int flags) noexcept { return static_cast<int>(syscall(SYS_epoll_create1, flags)); }

int own_epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) noexcept {
    return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, descriptor, event));
}

int own_epoll_wait(int epoll, epoll_event* events, int room, int milliseconds) noexcept {
    return static_cast<int>(
        syscall(SYS_epoll_pwait, epoll, events, room, milliseconds, nullptr, _NSIG / 8));
}
}
