#include "millrace/rpc/procedure.hpp"

#include <atomic>

namespace millrace::rpc::detail {

std::size_t next_place() noexcept {
    static std::atomic<std::size_t> next{0};
    return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace millrace::rpc::detail
