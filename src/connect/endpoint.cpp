// Endpoints: an open device with the port and GID that connections use.
#include <pthread.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "identity.hpp"
#include "millrace/base/error.hpp"
#include "millrace/connect/link.hpp"

namespace millrace::connect {

Endpoint::Endpoint(std::shared_ptr<verbs::Context> context, std::uint8_t port, int gid_index)
    : context_{std::move(context)},
      domain_{context_->allocate_protection_domain()},
      port_{port},
      gid_index_{gid_index} {}

std::shared_ptr<Endpoint> Endpoint::open(std::string_view device, int gid_index) {
    const verbs::Device found = verbs::find_device(device);
    if (found.raw()->node_type == IBV_NODE_RNIC) {
        throw base::Error(base::ErrorCode::unsupported, "open an endpoint",
                          std::string{found.name()},
                          "it is an iWARP adapter, which only rdma_cm can connect",
                          "use an InfiniBand or RoCE device, or soft0");
    }
    verbs::Context context = found.open();
    const std::uint8_t port = context.usable_port();
    const ibv_port_attr attributes = context.port(port);
    if (attributes.state != IBV_PORT_ACTIVE) {
        throw base::Error(base::ErrorCode::unsupported, "open an endpoint",
                          fmt::format("port {} of {}", port, found.name()),
                          "no port of the device is active",
                          "plug in the cable, set the interface up (Ethernet) or start a subnet "
                          "manager (InfiniBand), or use soft0");
    }
    if (gid_index >= attributes.gid_tbl_len) {
        throw base::Error(
            base::ErrorCode::invalid_argument, "open an endpoint",
            fmt::format("GID index {} of port {} of {}", gid_index, port, found.name()),
            fmt::format("the port has {} GIDs", attributes.gid_tbl_len),
            "choose a smaller index, or -1 to have it chosen");
    }
    if (gid_index < 0) gid_index = context.choose_gid_index(port);
    return std::shared_ptr<Endpoint>{
        new Endpoint{std::make_shared<verbs::Context>(std::move(context)), port, gid_index}};
}

std::shared_ptr<Endpoint> Endpoint::with_own_domain() const {
    return std::shared_ptr<Endpoint>{new Endpoint{context_, port_, gid_index_}};
}

namespace {

/// The shared endpoints by what they were opened for. Its lock is held for looks only, never while
/// a device is opened.
class Known {
  public:
    /// Never destroyed: threads that outlive main may still use it.
    static Known& of_process() {
        static Known* const the_one = [] {
            auto* const made = new Known;
            // Held across a fork, so that the child does not find it locked by a thread that it
            // does not have.
            pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                           [] { of_process().mutex_.unlock(); });
            return made;
        }();
        return *the_one;
    }
    [[nodiscard]] std::shared_ptr<Endpoint> find(const std::string& name) {
        const std::lock_guard guard{mutex_};
        const auto found = endpoints_.find(name);
        return found != endpoints_.end() ? found->second.lock() : nullptr;
    }
    /// `opened`, or what another thread has opened meanwhile.
    [[nodiscard]] std::shared_ptr<Endpoint> insert(const std::string& name,
                                                   const std::shared_ptr<Endpoint>& opened) {
        const std::lock_guard guard{mutex_};
        std::erase_if(endpoints_, [](const auto& entry) { return entry.second.expired(); });
        auto& entry = endpoints_[name];
        std::shared_ptr<Endpoint> other = entry.lock();
        if (other == nullptr) entry = opened;
        return other != nullptr ? other : opened;
    }

  private:
    std::mutex mutex_;  ///< of endpoints_
    std::map<std::string, std::weak_ptr<Endpoint>> endpoints_;
};

}  // namespace

std::shared_ptr<Endpoint> Endpoint::shared() {
    const verbs::Device device = verbs::find_device();
    // A child made by fork opens its own.
    std::string name = fmt::format("{} {}", getpid(), device.name());
    if (device.is_soft()) name += fmt::format(" {}", soft_fabric());
    Known& known = Known::of_process();
    if (std::shared_ptr<Endpoint> endpoint = known.find(name)) return endpoint;
    return known.insert(name, open(device.name()));
}

std::string Endpoint::describe() const {
    for (const verbs::Device& device : verbs::devices()) {
        if (device.name() == context_->name()) {
            return fmt::format("{} ({})", device.name(), device.facts().description);
        }
    }
    return std::string{context_->name()};
}

}  // namespace millrace::connect
