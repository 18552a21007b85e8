// What it means that epoll_ctl(EPOLL_CTL_ADD) answers EINVAL. Used by what puts epolls into epolls.
//
// The kernel bounds how many ways may lead from one event through nested epolls to those who wait:
// 1,000 through none, 500 through one, 100 through two, 50 through three. The end of a peer process
// is such an event on the soft device, and each connection to it is a way: its completion channel
// is an epoll, the descriptor of its end another one, and the program's loop a third.
#pragma once

namespace millrace::connect {

inline constexpr const char* nested_too_often =
    "the kernel allows one event no more ways through nested epolls (EINVAL)";
inline constexpr const char* remedy_for_nesting =
    "of one peer process, keep at most 100 connections in loops, or 50 in a hub that is in "
    "another loop";

}  // namespace millrace::connect
