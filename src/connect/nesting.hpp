// What it means that epoll_ctl(EPOLL_CTL_ADD) answers EINVAL. Used by what puts epolls into epolls.
//
// The kernel bounds how many ways may lead from one event through nested epolls to those who wait:
// 1,000 through none, 500 through one, 100 through two, 50 through three. Links take care to have
// no event in common: on the soft device they leave the end of a peer process, which would be one,
// to their sockets.
#pragma once

namespace millrace::connect {

inline constexpr const char* nested_too_often =
    "the kernel allows one event no more ways through nested epolls (EINVAL)";
inline constexpr const char* remedy_for_nesting =
    "put the loop that this one's descriptor is in into no other loop, or fewer descriptors into "
    "each";

}  // namespace millrace::connect
