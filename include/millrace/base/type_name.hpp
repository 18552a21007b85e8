// What a type is called, in the same words by GCC and by Clang: "long", "app::Event",
// "std::array<float,4>", "app::run(int)::Local". For names that two programs compare when they are
// connected.
//
// It is the name that linkers know (the Itanium C++ ABI's), written out: the two compilers agree on
// that, also of types in inline namespaces and in functions, which they spell differently in their
// messages. Without run-time type information it is the compiler's spelling all the same.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <typeinfo>

#include "millrace/base/language.hpp"

namespace millrace::base {

namespace detail {

/// A text that is put together at compile time.
struct TypeName {
    std::array<char, 1024> text{};
    std::size_t size = 0;

    constexpr void add(char letter) {
        if (size < text.size()) text[size++] = letter;
    }
    constexpr void add(std::string_view letters) {
        for (const char letter : letters) add(letter);
    }
};

constexpr bool is_of_a_word(char letter) noexcept {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '_' || letter == '$';
}

/// The words "long", "unsigned", "int" … of one integer type, in any order, and then the usual one.
struct IntegerWords {
    int longs = 0;
    bool is_unsigned = false, is_signed = false, is_short = false, is_char = false, is_int = false;

    constexpr bool take(std::string_view word) noexcept {
        if (word == "long") {
            ++longs;
        } else if (word == "unsigned") {
            is_unsigned = true;
        } else if (word == "signed") {
            is_signed = true;
        } else if (word == "short") {
            is_short = true;
        } else if (word == "char") {
            is_char = true;
        } else if (word == "int") {
            is_int = true;
        } else {
            return false;
        }
        return true;
    }
    [[nodiscard]] constexpr bool any() const noexcept {
        return longs != 0 || is_unsigned || is_signed || is_short || is_char || is_int;
    }
    constexpr void write(TypeName& into) const {
        if (is_unsigned) into.add("unsigned ");
        if (is_char) {
            if (is_signed) into.add("signed ");
            into.add("char");
        } else if (longs != 0) {
            into.add(longs == 1 ? "long" : "long long");
        } else {
            into.add(is_short ? "short" : "int");
        }
    }
};

/// A compiler's spelling of a type, made the same for all: no spaces but between words, integer
/// types by their shortest names, numbers without suffix, no inline namespaces of the library.
constexpr TypeName normalised(std::string_view text) {
    TypeName name;
    IntegerWords integer;
    bool behind_word = false;
    const auto end_integer = [&] {
        if (!integer.any()) return;
        integer.write(name);
        integer = {};
        behind_word = true;
    };
    while (!text.empty()) {
        if (text.front() == ' ') {
            text.remove_prefix(1);
            continue;
        }
        constexpr std::string_view nameless[] = {"{anonymous}", "(anonymous namespace)",
                                                 "<unnamed>"};
        bool is_nameless = false;
        for (const std::string_view way : nameless) {
            if (!text.starts_with(way)) continue;
            end_integer();
            name.add("{anonymous}");
            text.remove_prefix(way.size());
            is_nameless = true;
            break;
        }
        if (is_nameless) {
            behind_word = false;
            continue;
        }
        std::size_t size = 0;
        while (size < text.size() && is_of_a_word(text[size])) ++size;
        if (size == 0) {
            end_integer();
            name.add(text.front());
            text.remove_prefix(1);
            behind_word = false;
            continue;
        }
        std::string_view word = text.substr(0, size);
        text.remove_prefix(size);
        if ((word == "__cxx11" || word == "__1") && text.starts_with("::")) {
            text.remove_prefix(2);
            continue;
        }
        // "long double" is no integer.
        if (word == "double" && integer.longs == 1) {
            integer = {};
            if (behind_word) name.add(' ');
            name.add("long double");
            behind_word = true;
            continue;
        }
        if (!integer.any() && behind_word) name.add(' ');
        if (integer.take(word)) {
            behind_word = false;
            continue;
        }
        if (integer.any()) {
            end_integer();
            name.add(' ');
        }
        if (word.front() >= '0' && word.front() <= '9') {
            while (word.size() > 1 && (word.back() == 'u' || word.back() == 'U' ||
                                       word.back() == 'l' || word.back() == 'L')) {
                word.remove_suffix(1);
            }
        }
        name.add(word);
        behind_word = true;
    }
    end_integer();
    return name;
}

template <class T>
constexpr std::string_view spelling() noexcept {
    const std::string_view whole = __PRETTY_FUNCTION__;  // "… [with T = long int; …]"
    const std::size_t begin = whole.find("T = ") + 4;
    // What follows the type at GCC: the alias in the result type.
    const std::size_t alias = whole.rfind("; std::string_view");
    return whole.substr(begin, (alias != whole.npos ? alias : whole.rfind(']')) - begin);
}

/// Of what a linker calls it.
[[nodiscard]] TypeName written_out(const char* mangled);

}  // namespace detail

/// At most 1,024 letters. Allocates at the first call for each type.
template <class T>
[[nodiscard]] std::string_view type_name() {
#if defined(__cpp_rtti)
    static const detail::TypeName name = detail::written_out(typeid(T).name());
#else
    static const detail::TypeName name = detail::normalised(detail::spelling<T>());
#endif
    return {name.text.data(), name.size};
}

}  // namespace millrace::base
