// Included before every source of google/rdma-unit-test where abseil was built for C++14, as Debian
// 12's was: its string_view is a class of its own there, and these two functions are called with
// the standard's.
#pragma once
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

#include <concepts>
#include <string>
#include <string_view>
#include <vector>

#if !ABSL_USES_STD_STRING_VIEW
namespace absl {

// For nothing but string views: any other text is abseil's own function's.
template <std::same_as<std::string_view> View>
bool StartsWith(View text, View prefix) {
    return text.substr(0, prefix.size()) == prefix;
}

// The text must outlive what it was split into, as ever.
class PartsOfText {
  public:
    PartsOfText(std::string_view text, char separator) : text_(text), separator_(separator) {}

    template <class Part>
    operator std::vector<Part>() const {
        std::vector<Part> parts;
        for (auto rest = text_;;) {
            const auto end = rest.find(separator_);
            parts.emplace_back(rest.substr(0, end));
            if (end == rest.npos) {
                return parts;
            }
            rest.remove_prefix(end + 1);
        }
    }

  private:
    std::string_view text_;
    char separator_;
};

inline PartsOfText StrSplit(std::string& text, char separator) { return {text, separator}; }

}  // namespace absl
#endif
