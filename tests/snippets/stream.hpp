// What stands around the snippets about byte streams.
#pragma once

#include <cstddef>
#include <span>

#include "millrace/base/coroutine.hpp"
#include "millrace/stream/buffer.hpp"
#include "millrace/stream/coroutine.hpp"
#include "millrace/stream/socket.hpp"
#include "words.hpp"

namespace around {
extern stream::Socket socket;
}
extern stream::Buffer buffer;
extern std::span<std::byte> memory;
extern std::span<const std::byte> bytes;
extern std::size_t size;
