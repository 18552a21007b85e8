// Buffer, see the header.
#include "millrace/stream/buffer.hpp"

#include <utility>

#include <fmt/format.h>

namespace millrace::stream {
namespace {

/// What is written into a receive is looked at behind the message that tells of it. Devices that do
/// not know relaxed ordering keep theirs.
constexpr verbs::Access written_by_peers =
    verbs::Access::remote_write | static_cast<verbs::Access>(IBV_ACCESS_RELAXED_ORDERING);

}  // namespace

Buffer::Buffer(std::size_t size, std::shared_ptr<connect::Endpoint> endpoint) {
    auto made = std::make_shared<Slice::Registration>();
    made->endpoint = endpoint != nullptr ? std::move(endpoint) : connect::Endpoint::shared();
    made->memory = made->endpoint->protection_domain().allocate(size, written_by_peers);
    bytes_ = {made->memory.data(), made->memory.size()};
    share_out(std::move(made));
}

Buffer::Buffer(std::span<std::byte> memory, std::shared_ptr<connect::Endpoint> endpoint)
    : bytes_{memory} {
    auto made = std::make_shared<Slice::Registration>();
    made->endpoint = endpoint != nullptr ? std::move(endpoint) : connect::Endpoint::shared();
    made->program_memory =
        made->endpoint->protection_domain().register_memory(memory, written_by_peers);
    share_out(std::move(made));
}

void Buffer::share_out(std::shared_ptr<Slice::Registration> made) noexcept {
    Slice::Registration& registration = *made;
    const verbs::MemoryRegion& region = registration.memory.size() != 0
                                            ? registration.memory.region()
                                            : registration.program_memory;
    registration.lkey = region.lkey();
    registration.rkey = region.rkey();
    registration.domain = region.raw()->pd;
    registration_.reset(&registration);
    registration.share = {std::move(made), &region};
}

void Buffer::refuse(std::size_t offset, std::size_t length) const {
    throw base::Error{base::ErrorCode::invalid_argument, "take a slice of a buffer",
                      fmt::format("{} bytes at offset {}", length, offset),
                      fmt::format("the buffer has {} bytes", size()),
                      "stay within the buffer, or make a larger one"};
}

}  // namespace millrace::stream
