#include "hosts.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "workload/descriptor.hpp"

namespace millrace::tools::demo {
namespace {

constexpr const char* making = "make two hosts of network namespaces";

void unshare_network() {
    if (::unshare(CLONE_NEWNET) == 0) return;
    const uid_t user = ::geteuid();
    const gid_t group = ::getegid();
    if (errno != EPERM || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        base::throw_errno(errno, making, "unshare",
                          "run it as root, or where users may make namespaces "
                          "(kernel.unprivileged_userns_clone); or leave --netns out");
    }
    std::ofstream{"/proc/self/setgroups"} << "deny";
    std::ofstream{"/proc/self/uid_map"} << fmt::format("0 {} 1", user);
    std::ofstream{"/proc/self/gid_map"} << fmt::format("0 {} 1", group);
}

/// Runs iproute2's `ip`. Throws Error.
void ip(const std::string& arguments) {
    const std::string line = "ip " + arguments;
    if (const int status = std::system(line.c_str()); status != 0) {
        throw base::Error{base::ErrorCode::system, making, line,
                          fmt::format("it ended with status {}", status),
                          "install iproute2; or leave --netns out"};
    }
}

void set_up(const char* interface, const std::string& address) {
    ip("link set lo up");
    ip(fmt::format("addr add {}/24 dev {}", address, interface));
    ip(fmt::format("link set {} up", interface));
}

}  // namespace

std::unique_ptr<Hosts> Hosts::as_addresses() {
    std::unique_ptr<Hosts> hosts{new Hosts};
    hosts->addresses_ = {"127.0.0.2", "127.0.0.3"};
    return hosts;
}

std::unique_ptr<Hosts> Hosts::as_namespaces() {
    std::unique_ptr<Hosts> hosts{new Hosts};
    hosts->addresses_ = {"10.77.0.1", "10.77.0.2"};
    unshare_network();
    std::array<int, 2> made{}, joined{};
    if (::pipe2(made.data(), O_CLOEXEC) != 0 || ::pipe2(joined.data(), O_CLOEXEC) != 0) {
        base::throw_errno(errno, making, "a pipe");
    }
    const workload::Descriptor hears{made[0]}, tells{joined[1]};
    workload::Descriptor told{made[1]}, heard{joined[0]};
    const pid_t parent = ::getpid();
    hosts->holder_ = ::fork();
    if (hosts->holder_ < 0) base::throw_errno(errno, making, "fork");
    if (hosts->holder_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        char byte = 0;
        if (::getppid() != parent || ::unshare(CLONE_NEWNET) != 0) ::_exit(1);
        try {
            if (::write(told.get(), &byte, 1) != 1 || ::read(heard.get(), &byte, 1) != 1)
                ::_exit(1);
            set_up("millrace1", hosts->addresses_[1]);
        } catch (const base::Error&) {
            ::_exit(1);  // `ip` has said why
        }
        if (::write(told.get(), &byte, 1) != 1) ::_exit(1);
        for (;;) ::pause();
    }
    told = workload::Descriptor{};
    heard = workload::Descriptor{};
    const auto wait = [&] {
        char byte = 0;
        if (::read(hears.get(), &byte, 1) != 1) {
            throw base::Error{base::ErrorCode::system, making, "the second one",
                              "its process ended", "see what `ip` says, or leave --netns out"};
        }
    };
    wait();
    ip(fmt::format("link add millrace0 type veth peer name millrace1 netns {}", hosts->holder_));
    set_up("millrace0", hosts->addresses_[0]);
    const char byte = 0;
    if (::write(tells.get(), &byte, 1) != 1) base::throw_errno(errno, making, "a pipe");
    wait();
    return hosts;
}

Hosts::~Hosts() {
    if (holder_ <= 0) return;
    ::kill(holder_, SIGKILL);
    ::waitpid(holder_, nullptr, 0);
}

void Hosts::enter(Host host) const {
    ::setenv("MILLRACE_DEVICE", "soft0", 1);
    ::setenv("MILLRACE_WIRE", holder_ < 0 ? address(host).c_str() : "auto", 1);
    if (holder_ < 0 || host == Host::of_consumer) return;
    const std::string path = fmt::format("/proc/{}/ns/net", holder_);
    const workload::Descriptor space{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (space.get() < 0 || ::setns(space.get(), CLONE_NEWNET) != 0) {
        base::throw_errno(errno, "enter a network namespace", path);
    }
}

std::string Hosts::words() const {
    return fmt::format("two hosts on this machine, {}{} and {}",
                       holder_ < 0 ? "" : "network namespaces with a cable between them, ",
                       addresses_[0], addresses_[1]);
}

}  // namespace millrace::tools::demo
