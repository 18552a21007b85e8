// What an item type is called, so that the two ends of a flow queue notice that they mean different
// things by the same bytes. Compared when they are connected, as are size and alignment.
//
// The name is the compiler's, with what GCC and Clang write differently made equal: "long",
// "app::Event", "std::array<float,4>". A type that is called differently at the other end (renamed
// since, built by another compiler with another spelling), or whose name stays while its meaning
// changes, is given a name of the program's own:
//
//     template <>
//     struct millrace::flow::ItemName<app::Event> {
//         static constexpr std::string_view value = "org.example.event/2";
//     };
//
// What lies within a type is not looked at, beyond its size and alignment: who changes members and
// keeps the name, changes the name given here.
#pragma once

#include <string_view>

#include "millrace/base/type_name.hpp"
#include "millrace/ring/item_facts.hpp"

namespace millrace::flow {

/// What T is called: specialise it to say so yourself, in printable ASCII. Of a name of more than
/// 160 characters the end is not shown in errors, but compared.
template <class T>
struct ItemName {
    static constexpr std::string_view value = base::type_name<T>;
};

namespace detail {

using ring::ItemFacts;

template <class T>
[[nodiscard]] constexpr ItemFacts item_facts() noexcept {
    static_assert(!ItemName<T>::value.empty(), "an item type is called something");
    return {sizeof(T), alignof(T), ItemName<T>::value};
}

}  // namespace detail
}  // namespace millrace::flow
