#include "quotations.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "quotations_text.hpp"

namespace millrace::bench {
namespace {

[[noreturn]] void not_a_number(std::string_view line, std::string_view text) {
    throw base::Error{base::ErrorCode::protocol, "read what the works print", std::string{line},
                      fmt::format("'{}' is no number", text), "mend studies/works/quotations.md"};
}

double number_of(std::string_view line, std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) not_a_number(line, text);
    return value;
}

std::vector<std::string_view> parts_of(std::string_view text, std::string_view between) {
    std::vector<std::string_view> parts;
    for (;;) {
        const auto end = text.find(between);
        parts.push_back(text.substr(0, end));
        if (end == text.npos) return parts;
        text.remove_prefix(end + between.size());
    }
}

/// A line of a table: "| `name` | section | where | says | unit | value |".
Quotation quotation_of(std::string_view line) {
    const auto cells = parts_of(line, " | ");
    constexpr std::string_view begin = "| `";
    constexpr std::string_view end = " |";
    if (cells.size() != 6 || !cells[0].ends_with('`') || !cells[5].ends_with(end)) {
        throw base::Error{base::ErrorCode::protocol, "read what the works print", std::string{line},
                          "it has not six columns", "mend studies/works/quotations.md"};
    }
    Quotation made{.name = std::string{cells[0].substr(begin.size())},
                   .section = std::string{cells[1]},
                   .where = std::string{cells[2]},
                   .says = std::string{cells[3]},
                   .unit = std::string{cells[4]},
                   .values = {}};
    made.name.pop_back();
    for (const std::string_view each :
         parts_of(cells[5].substr(0, cells[5].size() - end.size()), "; ")) {
        const auto pair = parts_of(each, ": ");
        const double at = pair.size() == 2 ? number_of(line, pair[0]) : 0;
        made.values[at] = number_of(line, pair.back());
    }
    return made;
}

std::vector<Quotation> read() {
    std::vector<Quotation> all;
    for (const std::string_view line : parts_of(quotations_text, "\n")) {
        if (line.starts_with("| `")) all.push_back(quotation_of(line));
    }
    return all;
}

double value_of(const std::string& number) {
    std::string plain = number;
    std::erase(plain, ',');
    return std::strtod(plain.c_str(), nullptr);
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

std::span<const Quotation> all_quotations() {
    static const std::vector<Quotation> all = read();
    return all;
}

const Quotation& quotation(std::string_view name) {
    for (const Quotation& one : all_quotations()) {
        if (one.name == name) return one;
    }
    throw base::Error{base::ErrorCode::not_found, "quote a work", std::string{name},
                      "no line has that name", "see studies/works/quotations.md"};
}

double quoted(std::string_view name) {
    const Quotation& one = quotation(name);
    if (one.values.size() != 1) {
        throw base::Error{base::ErrorCode::invalid_argument, "quote a work", std::string{name},
                          "that line has several numbers", "say which of them"};
    }
    return one.values.begin()->second;
}

double quoted(std::string_view name, double at) {
    const Quotation& one = quotation(name);
    const auto found = one.values.find(at);
    if (found != one.values.end()) return found->second;
    throw base::Error{base::ErrorCode::not_found, "quote a work", std::string{name},
                      fmt::format("that line has no number at {}", at),
                      "see studies/works/quotations.md"};
}

double quoted_gain(std::string_view name) { return 1 + quoted(name) / 100; }

std::vector<std::string> numbers_in(std::string_view text) {
    std::vector<std::string> found;
    for (std::size_t at = 0; at < text.size();) {
        if (!is_digit(text[at])) {
            ++at;
            continue;
        }
        const std::size_t begin = at;
        while (at < text.size() &&
               (is_digit(text[at]) || ((text[at] == '.' || text[at] == ',') &&
                                       at + 1 < text.size() && is_digit(text[at + 1])))) {
            ++at;
        }
        const std::string_view number = text.substr(begin, at - begin);
        const bool is_of_word = (begin > 0 && (is_letter(text[begin - 1]) ||
                                               text[begin - 1] == '-' || text[begin - 1] == '^')) ||
                                (at < text.size() && is_letter(text[at]));
        const bool is_of_section = std::count(number.begin(), number.end(), '.') > 1;
        if (!is_of_word && !is_of_section) found.emplace_back(number);
    }
    return found;
}

bool is_quoted(std::string_view work, const std::string& number) {
    const auto point = number.find('.');
    const auto digits = point == number.npos ? 0 : number.size() - point - 1;
    const double scale = std::pow(10.0, static_cast<double>(digits));
    const double wanted = value_of(number);
    const auto is_that = [&](double value) {
        return std::abs(std::round(value * scale) / scale - wanted) < 1e-9;
    };
    return std::ranges::any_of(all_quotations(), [&](const Quotation& one) {
        if (one.work() != work) return false;
        for (const auto& [at, value] : one.values) {
            if (is_that(value) || (at != 0 && is_that(at))) return true;
        }
        return std::ranges::any_of(
            numbers_in(one.says), [&](const std::string& said) { return is_that(value_of(said)); });
    });
}

}  // namespace millrace::bench
