// Vectors whose memory does not stay, and words that want of memory may cost. Used by whatever a
// peer can make large, or end.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::message {

/// Gives memory back. (`= {}` of a vector would keep it.)
template <class T>
void give_back(std::vector<T>& memory) noexcept {
    std::vector<T>{}.swap(memory);
}
/// Empties it; memory of more than `most` elements does not stay.
template <class T>
void clear_keeping(std::vector<T>& memory, std::size_t most) noexcept {
    if (memory.capacity() > most) return give_back(memory);
    memory.clear();
}

/// The next ones up to `size` are added without want of memory.
template <class T>
void have_room(std::vector<T>& list, std::size_t size) {
    if (list.capacity() < size) list.reserve(2 * size);
}

/// Sets what explains something; where there is no memory for it, it stays unexplained.
inline void set_text(std::string& text, std::string_view what) noexcept {
    try {
        text.assign(what);
    } catch (const std::bad_alloc&) {
        text.clear();
    }
}
/// The text that `make()` makes, if there is memory for it.
template <class Make>
[[nodiscard]] std::string try_text(Make&& make) noexcept {
    try {
        return make();
    } catch (const std::bad_alloc&) {
        return {};
    }
}

}  // namespace millrace::message
