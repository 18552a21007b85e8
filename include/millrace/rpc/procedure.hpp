// What a procedure is: a type of the program, that both sides include.
//
//     struct Get {
//         static constexpr std::string_view name = "get";
//         using Request = Key;
//         using Response = Value;
//     };
//
// A procedure whose answer is a stream of parts has a Part in place of a Response. One that does
// the same if it is executed twice may say `static constexpr bool is_idempotent = true;`: then a
// client repeats it where it does not know whether it was executed (RetryPolicy).
//
// On the wire a procedure is a number, which the server gives it. A client learns the numbers, and
// whether both mean the same by a name, when it connects (table.hpp).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/base/language.hpp"
#include "millrace/rpc/codec.hpp"

namespace millrace::rpc {

/// What a name stands for: compared at set-up.
struct Type {
    Kind kind = Kind::plain;
    std::uint32_t size = 0;  ///< of a plain one; it may differ: the prefix rule
    std::string name{};
    friend bool operator==(const Type&, const Type&) = default;
};

namespace detail {
/// Of a T that a procedure carries. A concept that T does not fulfil would be told of in the last
/// of many lines of an error, and this is the first.
template <class T>
struct Checked {
    static_assert(Carried<T>,
                  "specialise rpc::Codec<T> for what this procedure carries: T is neither a plain "
                  "struct (trivially copyable) nor bytes, see millrace/rpc/codec.hpp");
    static constexpr bool is_carried = true;
};
}  // namespace detail

template <class P>
concept StreamProcedure =
    requires {
        { P::name } -> std::convertible_to<std::string_view>;
        typename P::Request;
        typename P::Part;
    } && detail::Checked<typename P::Request>::is_carried &&
    detail::Checked<typename P::Part>::is_carried;
template <class P>
concept UnaryProcedure =
    requires {
        { P::name } -> std::convertible_to<std::string_view>;
        typename P::Request;
        typename P::Response;
    } && detail::Checked<typename P::Request>::is_carried &&
    detail::Checked<typename P::Response>::is_carried;
template <class P>
concept Procedure = UnaryProcedure<P> || StreamProcedure<P>;

/// What each side says of a procedure.
struct Signature {
    std::string name{};
    Type request{};
    Type response{};  ///< or part
    bool is_idempotent = false;
    bool is_stream = false;
};

namespace detail {

template <Carried T>
[[nodiscard]] Type type_of() {
    return {kind_of<T>(), kind_of<T>() == Kind::plain ? static_cast<std::uint32_t>(sizeof(T)) : 0,
            std::string{carried_name<T>()}};
}
template <class P>
[[nodiscard]] constexpr bool is_idempotent() noexcept {
    if constexpr (requires {
                      { P::is_idempotent } -> std::convertible_to<bool>;
                  }) {
        return P::is_idempotent;
    } else {
        return false;
    }
}
template <Procedure P>
[[nodiscard]] Signature signature_of() {
    Signature signature{.name = std::string{P::name},
                        .request = type_of<typename P::Request>(),
                        .is_idempotent = is_idempotent<P>(),
                        .is_stream = StreamProcedure<P>};
    if constexpr (StreamProcedure<P>) {
        signature.response = type_of<typename P::Part>();
    } else {
        signature.response = type_of<typename P::Response>();
    }
    return signature;
}

/// Bytes of its response, if that is a plain struct; else 0.
template <Procedure P>
[[nodiscard]] constexpr std::size_t plain_response_bytes() noexcept {
    if constexpr (UnaryProcedure<P>) {
        return kind_of<typename P::Response>() == Kind::plain ? sizeof(typename P::Response) : 0;
    } else {
        return 0;
    }
}

/// Numbers the procedures of this program, for a place in each client's list.
[[nodiscard]] std::size_t next_place() noexcept;
template <class P>
inline const std::size_t place_of = next_place();

}  // namespace detail
}  // namespace millrace::rpc
