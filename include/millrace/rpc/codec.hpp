// How the request and the response of a procedure become bytes.
//
//   plain    a trivially copyable struct, as it lies in memory. It may grow at its end: a tail that
//            the reader does not know is left out, and one that the writer did not know keeps its
//            default (the structural prefix rule). Both ends have the same byte order. Padding is
//            written as zeroes where the compiler can do that (GCC); with others, write out as
//            members what is padding at the end before the struct grows into it.
//   bytes    std::vector<std::byte>, std::string, and without a copy std::span<const std::byte> and
//            std::string_view. A handler that receives a view has it until the handler returns; a
//            client gets a vector or a string instead (Owned<T>).
//   codec    anything else, for which the program says how:
//
//     template <>
//     struct millrace::rpc::Codec<Person> {
//         static constexpr std::string_view name = "person, CBOR";
//         static std::vector<std::uint8_t> encode(const Person& person);   // any range of bytes
//         static bool decode(std::span<const std::byte> bytes, Person& person);
//     };
//
// What the other end takes it for is compared when client and server are connected: kind and name.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/base/detail/holds_address.hpp"
#include "millrace/base/language.hpp"
#include "millrace/base/type_name.hpp"

namespace millrace::rpc {

/// To be specialised. `decode` answers false for bytes that are not a T; it may throw, which is the
/// same.
template <class T>
struct Codec;

/// What two ends compare of a request or response. Of a plain struct that says
/// `static constexpr std::string_view rpc_name`, it is that; else what base/type_name.hpp says.
enum class Kind : std::uint8_t { plain = 1, bytes, codec };

template <class T>
concept HasCodec = requires(const T& value, T& into, std::span<const std::byte> bytes) {
    { Codec<T>::name } -> std::convertible_to<std::string_view>;
    requires std::ranges::contiguous_range<decltype(Codec<T>::encode(value))>;
    { Codec<T>::decode(bytes, into) } -> std::same_as<bool>;
};
template <class T>
concept Bytes = std::same_as<T, std::vector<std::byte>> || std::same_as<T, std::string> ||
                std::same_as<T, std::span<const std::byte>> || std::same_as<T, std::string_view>;
template <class T>
concept Plain = !HasCodec<T> && !Bytes<T> && std::is_trivially_copyable_v<T> &&
                std::is_default_constructible_v<T> && !base::holds_address<T>;
template <class T>
concept Carried = Plain<T> || Bytes<T> || HasCodec<T>;

namespace detail {

template <class T>
struct OwnedOf {
    using type = T;
};
template <>
struct OwnedOf<std::span<const std::byte>> {
    using type = std::vector<std::byte>;
};
template <>
struct OwnedOf<std::string_view> {
    using type = std::string;
};

template <class T>
[[nodiscard]] constexpr Kind kind_of() noexcept {
    return HasCodec<T> ? Kind::codec : Bytes<T> ? Kind::bytes : Kind::plain;
}
template <class T>
[[nodiscard]] std::string_view carried_name() {
    if constexpr (HasCodec<T>) {
        return Codec<T>::name;
    } else if constexpr (Bytes<T>) {
        return "bytes";
    } else if constexpr (requires {
                             { T::rpc_name } -> std::convertible_to<std::string_view>;
                         }) {
        return T::rpc_name;
    } else {
        return base::type_name<T>();
    }
}

/// It lies in memory as it travels, and is not made of more than that.
template <class T>
inline constexpr bool lies_as_bytes =
    Bytes<T> || (Plain<T> && !std::is_empty_v<T> && std::has_unique_object_representations_v<T>);
template <class T>
    requires lies_as_bytes<T>
[[nodiscard]] std::span<const std::byte> bytes_of(const T& value) noexcept {
    if constexpr (Bytes<T>) {
        return std::as_bytes(std::span{value});
    } else {
        return std::as_bytes(std::span{std::addressof(value), 1});
    }
}

/// A value as bytes: what it needs, and writing it there.
template <Carried T>
class Writer {
  public:
    explicit Writer(const T& value) noexcept : value_{&value} {}
    [[nodiscard]] static constexpr std::size_t size() noexcept { return sizeof(T); }
    void write(std::byte* into) const noexcept {
        if constexpr (std::is_empty_v<T>) {
            *into = std::byte{0};
        } else {
            std::memcpy(into, value_, sizeof(T));
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
            // Bytes of padding would be whatever lay in this process' memory.
            if constexpr (!std::has_unique_object_representations_v<T>) {
                T copy = *value_;
                __builtin_clear_padding(&copy);
                std::memcpy(into, &copy, sizeof(T));
            }
#endif
#endif
        }
    }

  private:
    const T* value_;
};
template <Bytes T>
class Writer<T> {
  public:
    explicit Writer(const T& value) noexcept : bytes_{std::as_bytes(std::span{value})} {}
    [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
    void write(std::byte* into) const noexcept {
        if (!bytes_.empty()) std::memcpy(into, bytes_.data(), bytes_.size());
    }

  private:
    std::span<const std::byte> bytes_;
};
template <HasCodec T>
class Writer<T> {
  public:
    explicit Writer(const T& value) : encoded_{Codec<T>::encode(value)} {}
    [[nodiscard]] std::size_t size() const noexcept { return std::ranges::size(encoded_); }
    void write(std::byte* into) const noexcept {
        static_assert(sizeof(std::ranges::range_value_t<Encoded>) == 1, "bytes");
        if (size() != 0) std::memcpy(into, std::ranges::data(encoded_), size());
    }

  private:
    using Encoded = std::remove_cvref_t<decltype(Codec<T>::encode(std::declval<const T&>()))>;
    Encoded encoded_;
};

/// A plain struct of which all has come, without making one first that is then written over.
template <Plain T>
[[nodiscard, gnu::always_inline]] inline T whole(std::span<const std::byte> bytes) noexcept {
    std::array<std::byte, sizeof(T)> copy;
    std::memcpy(copy.data(), bytes.data(), sizeof(T));
    return std::bit_cast<T>(copy);
}

/// False: the bytes are not a T. `into` is as it was made.
template <Carried T>
[[nodiscard]] bool read(std::span<const std::byte> bytes, T& into) {
    if constexpr (HasCodec<T>) {
        return Codec<T>::decode(bytes, into);
    } else if constexpr (Bytes<T>) {
        using Letter = std::remove_cvref_t<decltype(*into.data())>;
        const auto* const first = reinterpret_cast<const Letter*>(bytes.data());
        into = T{first, first + bytes.size()};
        return true;
    } else {
        const std::size_t size = std::min(bytes.size(), sizeof(T));
        if constexpr (!std::is_empty_v<T>) {
            if (size == sizeof(T)) {
                std::memcpy(static_cast<void*>(std::addressof(into)), bytes.data(), sizeof(T));
            } else if (size != 0) {
                std::memcpy(static_cast<void*>(std::addressof(into)), bytes.data(), size);
            }
        }
        return true;
    }
}

}  // namespace detail

/// What a client gets of a T: itself, or what owns the bytes of a view.
template <class T>
using Owned = typename detail::OwnedOf<T>::type;

}  // namespace millrace::rpc
