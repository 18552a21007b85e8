// See port.hpp.
#include "process/port.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "millrace/base/clock.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/error.hpp"

namespace millrace::soft {
namespace {

constexpr std::array<std::uint8_t, 8> guid_bytes{0x02, 0x4d, 0x52, 0xff, 0xfe, 0x00, 0x00, 0x01};
constexpr const char* link_variable = "MILLRACE_SOFT_LINK";

[[nodiscard]] ibv_gid own_gid() noexcept {
    ibv_gid gid{};
    gid.raw[0] = 0xfe;  // link-local prefix
    gid.raw[1] = 0x80;
    std::memcpy(gid.raw + 8, guid_bytes.data(), guid_bytes.size());
    return gid;
}

[[nodiscard]] bool equal(const ibv_gid& one, const ibv_gid& other) noexcept {
    return std::memcmp(one.raw, other.raw, sizeof one.raw) == 0;
}

struct Address {
    ibv_gid gid{};
    std::uint32_t interface = 0;

    [[nodiscard]] bool operator<(const Address& other) const noexcept {
        const auto family = [](const Address& address) { return is_ipv4(address.gid) ? 0 : 1; };
        if (family(*this) != family(other)) return family(*this) < family(other);
        if (interface != other.interface) return interface < other.interface;
        return std::memcmp(gid.raw, other.gid.raw, sizeof gid.raw) < 0;
    }
};

/// A host with more addresses shows the first ones.
constexpr std::size_t most_addresses = 128;

struct Addresses {
    std::array<Address, most_addresses> all{};
    std::size_t count = 0;

    void add(const Address& address) noexcept {
        if (count < all.size()) all[count++] = address;
    }
};

[[nodiscard]] std::optional<ibv_gid> gid_of(const sockaddr* address) noexcept {
    if (address->sa_family == AF_INET) {
        sockaddr_in plain;
        std::memcpy(&plain, address, sizeof plain);
        return gid_of_ipv4(plain.sin_addr.s_addr);
    }
    if (address->sa_family == AF_INET6) {
        ibv_gid gid;
        sockaddr_in6 plain;
        std::memcpy(&plain, address, sizeof plain);
        std::memcpy(gid.raw, &plain.sin6_addr, sizeof plain.sin6_addr);
        // A link-local address is an interface's affair; the port has its own.
        if (gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80) return std::nullopt;
        return gid;
    }
    return std::nullopt;
}

/// The host's addresses at this moment, of the loopback or of all others.
void collect(const ifaddrs* list, bool loopback, Addresses& found) noexcept {
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
        if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 ||
            ((at->ifa_flags & IFF_LOOPBACK) != 0) != loopback) {
            continue;
        }
        if (const auto gid = gid_of(at->ifa_addr)) found.add({*gid, if_nametoindex(at->ifa_name)});
    }
    std::sort(found.all.begin(), found.all.begin() + static_cast<std::ptrdiff_t>(found.count));
}

/// Nothing: the system does not say (no descriptor is free, or a filter forbids to ask).
[[nodiscard]] std::optional<Addresses> host_addresses() noexcept {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return std::nullopt;
    Addresses found;
    collect(list, false, found);
    if (found.count == 0) collect(list, true, found);
    ::freeifaddrs(list);
    return found;
}

class GidTable {
  public:
    void refresh() noexcept {
        const base::Uncancelled held;  // getifaddrs can be cancelled, and nobody here unwinds
        const int error = errno;
        const auto asked = base::Clock::now();
        const std::optional<Addresses> now = host_addresses();
        errno = error;
        const std::lock_guard guard{mutex_};
        seen_ = base::Clock::now();
        took_ = seen_ - asked;
        places_.all[0].gid = wire_ ? wire_->gid : own_gid();
        places_.count = wire_ && wire_->alone ? 1 : std::max<std::size_t>(places_.count, 1);
        if (wire_) places_.all[0].interface = wire_->interface;
        if (!now || (wire_ && wire_->alone)) return;  // what was there stays there
        if (!wire_) places_.all[0].interface = now->count == 0 ? 0 : now->all[0].interface;
        for (std::size_t i = 1; i < places_.count; ++i) {
            if (find(*now, places_.all[i].gid) == now->count) places_.all[i] = {};
        }
        for (std::size_t i = 0; i < now->count; ++i) {
            if (find(places_, now->all[i].gid) == places_.count) put(now->all[i]);
        }
    }
    /// The same unless that was done a moment ago: the kernel takes tens of microseconds to list
    /// all interfaces, and who accepts clients by the hundred asks for the port each time. It takes
    /// a thousandth of the time of a thread that does nothing else, so that few messages wait for
    /// it which that thread also serves.
    void refresh_sometimes() noexcept {
        {
            const std::lock_guard guard{mutex_};
            constexpr std::chrono::nanoseconds least = std::chrono::milliseconds{10};
            constexpr std::chrono::nanoseconds most = std::chrono::seconds{1};
            const auto pause = std::clamp<std::chrono::nanoseconds>(1000 * took_, least, most);
            if (base::Clock::now() - seen_ < pause) return;
        }
        refresh();
    }
    [[nodiscard]] Addresses places() noexcept {
        {
            const std::lock_guard guard{mutex_};
            if (places_.count != 0) return places_;
        }
        refresh();
        const std::lock_guard guard{mutex_};
        return places_;
    }

    void show(const std::optional<WireFacts>& facts) noexcept {
        {
            const std::lock_guard guard{mutex_};
            if (!wire_ && !facts) return;
            wire_ = facts;
        }
        refresh();
    }
    [[nodiscard]] ibv_mtu mtu() noexcept {
        const std::lock_guard guard{mutex_};
        return wire_ ? wire_->mtu : IBV_MTU_4096;
    }

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

    [[nodiscard]] static std::size_t find(const Addresses& in, const ibv_gid& gid) noexcept {
        std::size_t at = 0;
        while (at < in.count && !equal(in.all[at].gid, gid)) ++at;
        return at;
    }

  private:
    void put(const Address& address) noexcept {
        for (std::size_t i = 1; i < places_.count; ++i) {
            if (is_empty(places_.all[i].gid)) {
                places_.all[i] = address;
                return;
            }
        }
        places_.add(address);
    }

    std::mutex mutex_;
    Addresses places_;
    std::optional<WireFacts> wire_;
    base::Clock::time_point seen_{};
    std::chrono::nanoseconds took_{0};  ///< the last look
};

/// Never destroyed: a program may ask after that. Held over fork, as a child asks, too.
[[nodiscard]] GidTable& table() noexcept {
    static GidTable& instance = *[] {
        auto* const made = new GidTable;
        pthread_atfork([] { table().lock(); }, [] { table().unlock(); }, [] { table().unlock(); });
        return made;
    }();
    return instance;
}

[[nodiscard]] bool is_ethernet() noexcept { return port_link_layer() == IBV_LINK_LAYER_ETHERNET; }

}  // namespace

__be64 device_guid() noexcept {
    __be64 value;
    std::memcpy(&value, guid_bytes.data(), sizeof value);
    return value;
}

std::uint8_t port_link_layer() noexcept {
    const char* const set = std::getenv(link_variable);
    return set != nullptr && std::string_view{set} == "infiniband" ? IBV_LINK_LAYER_INFINIBAND
                                                                   : IBV_LINK_LAYER_ETHERNET;
}

void check_port_link_layer() {
    const char* const set = std::getenv(link_variable);
    if (set == nullptr || *set == '\0') return;
    const std::string_view link{set};
    if (link == "ethernet" || link == "infiniband") return;
    throw base::Error{base::ErrorCode::invalid_argument, "choose the link layer of the soft device",
                      std::string{link_variable} + "=" + set, "there is no such link layer",
                      "set it to ethernet (RoCE, the default) or infiniband"};
}

bool is_empty(const ibv_gid& gid) noexcept { return equal(gid, ibv_gid{}); }

ibv_gid gid_of_ipv4(__be32 address) noexcept {
    ibv_gid gid{};
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, &address, sizeof address);
    return gid;
}

bool is_ipv4(const ibv_gid& gid) noexcept {
    constexpr std::array<std::uint8_t, 12> prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::memcmp(gid.raw, prefix.data(), prefix.size()) == 0;
}

void show_wire(const std::optional<WireFacts>& facts) noexcept { table().show(facts); }
ibv_mtu port_mtu() noexcept { return table().mtu(); }

int count_gids() noexcept {
    if (!is_ethernet()) return 1;
    table().refresh_sometimes();
    return static_cast<int>(2 * table().places().count);
}

std::optional<ibv_gid_entry> gid_at(std::uint32_t index) noexcept {
    ibv_gid_entry entry{};
    entry.gid_index = index;
    entry.port_num = 1;
    if (!is_ethernet()) {
        if (index != 0) return std::nullopt;
        entry.gid = own_gid();
        entry.gid_type = IBV_GID_TYPE_IB;
        return entry;
    }
    const Addresses places = table().places();
    if (index / 2 >= places.count) return std::nullopt;
    entry.gid = places.all[index / 2].gid;
    entry.ndev_ifindex = places.all[index / 2].interface;
    entry.gid_type = index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    return entry;
}

bool is_own_gid(const ibv_gid& gid) noexcept {
    if (is_empty(gid)) return false;
    if (!is_ethernet()) return equal(gid, own_gid());
    for (const bool again : {false, true}) {
        if (again) table().refresh();
        const Addresses places = table().places();
        if (GidTable::find(places, gid) < places.count) return true;
    }
    return false;
}

int index_of_gid(const ibv_gid& gid, std::uint32_t type) noexcept {
    for (std::uint32_t index = 0; const auto entry = gid_at(index); ++index) {
        if (entry->gid_type == type && equal(entry->gid, gid)) return static_cast<int>(index);
    }
    return -1;
}

}  // namespace millrace::soft
