#include "doors/open_doors.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "doors/memcached_door.hpp"
#include "doors/resp_door.hpp"

namespace millrace::kv {

OpenDoors::One::One(const connect::Address& address, std::unique_ptr<DoorService> its_service)
    : listener{address}, service{std::move(its_service)} {
    service->stats = [this] { return stats(); };
}

DoorStats OpenDoors::One::stats() const noexcept {
    DoorStats all;
    for (const auto& part : parts) part->add_to(all);
    all.denied = service->denied.load(std::memory_order_relaxed);
    return all;
}

OpenDoors::OpenDoors(Store& store, Gate& gate, const DoorOptions& options) {
    if (options.tls) identity_.emplace(*options.tls);
    if (options.resp) open_resp(store, gate, options);
    if (options.memcached) open_memcached(store, gate, options);
}

OpenDoors::~OpenDoors() = default;

void OpenDoors::open_resp(Store& store, Gate& gate, const DoorOptions& options) {
    auto made = std::make_unique<RespService>(store, gate, crowd_, options);
    RespService& service = *made;
    service.identity = identity_ ? &*identity_ : nullptr;
    auto one = std::make_unique<One>(*options.resp, std::move(made));
    service.each_session = [&door = *one](FunctionRef<void(const RespSession&)> visit) {
        for (const auto& part : door.parts) static_cast<RespDoor&>(*part).each_session(visit);
    };
    for (std::size_t thread = 0; thread < gate.threads(); ++thread) {
        one->parts.push_back(std::make_unique<RespDoor>(service, one->listener, thread));
    }
    doors_[static_cast<std::size_t>(DoorKind::resp)] = std::move(one);
}

void OpenDoors::open_memcached(Store& store, Gate& gate, const DoorOptions& options) {
    auto made = std::make_unique<MemcachedService>(store, gate, crowd_, options);
    MemcachedService& service = *made;
    service.identity = identity_ ? &*identity_ : nullptr;
    auto one = std::make_unique<One>(*options.memcached, std::move(made));
    for (std::size_t thread = 0; thread < gate.threads(); ++thread) {
        one->parts.push_back(std::make_unique<MemcachedDoor>(service, one->listener, thread));
    }
    doors_[static_cast<std::size_t>(DoorKind::memcached)] = std::move(one);
}

void OpenDoors::call(const std::function<void()>& note_expiring, Saves& saves) {
    for (const auto& one : doors_) {
        if (one == nullptr) continue;
        one->service->note_expiring = note_expiring;
        one->service->saves = &saves;
    }
}

bool OpenDoors::empty() const noexcept {
    return std::ranges::all_of(doors_, [](const auto& one) { return one == nullptr; });
}

void OpenDoors::close() noexcept {
    for (const auto& one : doors_) {
        if (one == nullptr) continue;
        for (const auto& part : one->parts) part->close();
    }
}

const connect::Address* OpenDoors::address(DoorKind kind) const noexcept {
    const One* const one = find(kind);
    return one == nullptr ? nullptr : &one->listener.address();
}

DoorStats OpenDoors::stats(DoorKind kind) const noexcept {
    const One* const one = find(kind);
    return one == nullptr ? DoorStats{} : one->stats();
}

void OpenDoors::add_times(DoorKind kind, base::Histogram& to) const {
    const One* const one = find(kind);
    if (one == nullptr) return;
    for (const auto& part : one->parts) to.add(part->times());
}

}  // namespace millrace::kv
