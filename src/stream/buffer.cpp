// Buffer, see the header.
#include "millrace/stream/buffer.hpp"

#include <utility>

#include <fmt/format.h>

namespace millrace::stream {

Buffer::Buffer(std::size_t size, std::shared_ptr<connect::Endpoint> endpoint)
    : endpoint_{endpoint != nullptr ? std::move(endpoint) : connect::Endpoint::shared()},
      memory_{endpoint_->protection_domain().allocate(size, verbs::Access::remote_write)},
      bytes_{memory_.data(), memory_.size()} {}

Buffer::Buffer(std::span<std::byte> memory, std::shared_ptr<connect::Endpoint> endpoint)
    : endpoint_{endpoint != nullptr ? std::move(endpoint) : connect::Endpoint::shared()},
      region_{endpoint_->protection_domain().register_memory(memory, verbs::Access::remote_write)},
      bytes_{memory} {}

void Buffer::refuse(std::size_t offset, std::size_t length) const {
    throw base::Error{base::ErrorCode::invalid_argument, "take a slice of a buffer",
                      fmt::format("{} bytes at offset {}", length, offset),
                      fmt::format("the buffer has {} bytes", size()),
                      "stay within the buffer, or make a larger one"};
}

}  // namespace millrace::stream
