// The one function of magic_enum that google/rdma-unit-test calls, for its messages: it tells an
// enumerator's number instead of its name.
#pragma once
#include <string>

namespace magic_enum {
template <class Enum>
std::string enum_name(Enum value) {
    return std::to_string(static_cast<long long>(value));
}
}  // namespace magic_enum
