// The two hosts of `millrace demo --hosts` on one machine: two addresses of its loopback, or two
// network namespaces with a cable between them (--netns). Made by the demo; each child enters one
// before it opens anything.
#pragma once

#include <sys/types.h>

#include <array>
#include <memory>
#include <string>

namespace millrace::tools::demo {

enum class Host : std::uint8_t { of_consumer, of_producer };

class Hosts {
  public:
    /// 127.0.0.2 and 127.0.0.3.
    [[nodiscard]] static std::unique_ptr<Hosts> as_addresses();
    /// This process moves into one of two new namespaces for ever, and into a new user namespace
    /// where it has no right to make them otherwise: called while it has one thread. Throws Error.
    [[nodiscard]] static std::unique_ptr<Hosts> as_namespaces();
    Hosts(const Hosts&) = delete;
    Hosts& operator=(const Hosts&) = delete;
    ~Hosts();

    [[nodiscard]] const std::string& address(Host host) const noexcept {
        return addresses_[static_cast<std::size_t>(host)];
    }
    /// The calling process is on that host from now on, and its soft device has a wire. Throws
    /// Error.
    void enter(Host host) const;
    /// "two hosts on this machine, 127.0.0.2 and 127.0.0.3".
    [[nodiscard]] std::string words() const;

  private:
    Hosts() = default;
    std::array<std::string, 2> addresses_;
    pid_t holder_ = -1;  ///< it keeps the producer's namespace; -1: there are no namespaces
};

}  // namespace millrace::tools::demo
