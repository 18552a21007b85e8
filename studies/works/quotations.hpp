// The numbers that the five works print, as quotations.md has them: what studies judge by and what
// pages quote comes from there, and from nowhere else.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::bench {

/// One line of quotations.md.
struct Quotation {
    std::string name;     ///< "000.socket.10g": the work's number first
    std::string section;  ///< "6.4"; of slides their title
    std::string where;    ///< "table 6.1", "text, figure 6.12"
    std::string says;
    std::string unit;
    /// By what the line says, which is a size in bytes or a number of clients, mostly. A number
    /// that depends on nothing has 0.
    std::map<double, double> values;

    [[nodiscard]] std::string_view work() const { return std::string_view{name}.substr(0, 3); }
};

/// In the order of the works.
[[nodiscard]] std::span<const Quotation> all_quotations();
/// Throws Error (not_found): there is no such line. So do the others.
[[nodiscard]] const Quotation& quotation(std::string_view name);
/// The number of a line that has one. Throws Error (invalid_argument): it has several.
[[nodiscard]] double quoted(std::string_view name);
/// That of a line with several.
[[nodiscard]] double quoted(std::string_view name, double at);
/// Factor of what the work says is so many percent more: 1.4 of 40.
[[nodiscard]] double quoted_gain(std::string_view name);

/// Numbers of a text as people write them: "1,296", "2.75", "4". Those that belong to a word
/// ("Push-2", "x86") or to the number of a section or figure ("6.4.1", "4.4a") are left out.
[[nodiscard]] std::vector<std::string> numbers_in(std::string_view text);
/// True if a line of that work ("000") has the number, or rounded to as many digits as it is
/// written with: as a value, as what a value belongs to, or in what it says.
[[nodiscard]] bool is_quoted(std::string_view work, const std::string& number);

}  // namespace millrace::bench
