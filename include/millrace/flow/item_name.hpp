// What an item type is called, so that the two ends of a flow queue notice that they mean different
// things by the same bytes. Compared when they are connected, as are size and alignment.
//
// The name is the one that linkers know, by which GCC and Clang call a type alike: "long",
// "app::Event", "std::array<float,4>" (base/type_name.hpp). A type that is called differently at
// the other end (renamed since, or moved to another namespace or function), or whose name stays
// while its meaning changes, is given a name of the program's own:
//
//     template <>
//     struct millrace::flow::ItemName<app::Event> {
//         static constexpr std::string_view value = "org.example.event/2";
//     };
//
// What lies within a type is not looked at, beyond its size and alignment: a program that changes
// members and keeps the name, changes the name given here.
#pragma once

#include <string_view>

#include "millrace/base/type_name.hpp"
#include "millrace/ring/item_facts.hpp"

namespace millrace::flow {

/// What T is called: specialise it with a `value` to say so yourself, in printable ASCII. Of a name
/// of more than 160 characters the end is not shown in errors, but compared.
template <class T>
struct ItemName {};

/// What T is called, by the program or else by base::type_name.
template <class T>
[[nodiscard]] std::string_view item_name() {
    if constexpr (requires { ItemName<T>::value; }) {
        static_assert(!ItemName<T>::value.empty(), "an item type is called something");
        return ItemName<T>::value;
    } else {
        return base::type_name<T>();
    }
}

namespace detail {

using ring::ItemFacts;

template <class T>
[[nodiscard]] ItemFacts item_facts() {
    return {sizeof(T), alignof(T), item_name<T>()};
}

}  // namespace detail
}  // namespace millrace::flow
