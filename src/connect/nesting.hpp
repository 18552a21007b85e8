// What it means that epoll_ctl(EPOLL_CTL_ADD) answers EINVAL. Used by what puts epolls into epolls.
//
// The kernel bounds how many ways may lead from one event through nested epolls to those who wait:
// 1,000 through none, 500 through one, 100 through two, 50 through three. Links take care to have
// no event in common: on the soft device they leave the end of a peer process, which would be one,
// to their sockets. Where that device comes through the system's library (the drop-in), they
// cannot.
#pragma once

namespace millrace::connect {

inline constexpr const char* nested_too_often =
    "the kernel allows one event no more ways through nested epolls (EINVAL)";
inline constexpr const char* remedy_for_nesting =
    "use the soft device without the drop-in; with it, keep at most 100 connections to one peer "
    "process in loops, or 50 in a hub that is in another loop";

}  // namespace millrace::connect
