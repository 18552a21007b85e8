// Types whose bytes mean nothing in another process: pointers, and what the standard library makes
// of them. Asked by floors that send objects as they are.
#pragma once

#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "millrace/base/language.hpp"

namespace millrace::base {

/// As far as the type itself tells: members of a program's own class are not looked at.
template <class T>
inline constexpr bool holds_address = std::is_pointer_v<T> || std::is_member_pointer_v<T> ||
                                      std::is_null_pointer_v<T> || std::is_reference_v<T>;
template <class T, std::size_t n>
inline constexpr bool holds_address<std::array<T, n>> = holds_address<T>;
template <class T>
inline constexpr bool holds_address<std::atomic<T>> = holds_address<T>;
template <class T>
inline constexpr bool holds_address<std::optional<T>> = holds_address<T>;
template <class T, class U>
inline constexpr bool holds_address<std::pair<T, U>> = holds_address<T> || holds_address<U>;
template <class... T>
inline constexpr bool holds_address<std::tuple<T...>> = (holds_address<T> || ...);
template <class... T>
inline constexpr bool holds_address<std::variant<T...>> = (holds_address<T> || ...);
template <class T, std::size_t n>
inline constexpr bool holds_address<std::span<T, n>> = true;
template <class T, class Traits>
inline constexpr bool holds_address<std::basic_string_view<T, Traits>> = true;
template <class T>
inline constexpr bool holds_address<std::reference_wrapper<T>> = true;
template <class T>
inline constexpr bool holds_address<std::initializer_list<T>> = true;
template <class T>
inline constexpr bool holds_address<std::coroutine_handle<T>> = true;

}  // namespace millrace::base
