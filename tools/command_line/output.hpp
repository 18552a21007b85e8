// What the subcommands share of writing to people: text that fits the terminal, tables, and
// whether all of it arrived.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::tools {

/// Columns of the terminal, at least 20: COLUMNS if it is set, else what standard output's terminal
/// says. None where neither says it.
[[nodiscard]] std::optional<std::size_t> terminal_width();

/// The same, and 80 where nothing says it.
[[nodiscard]] std::size_t output_width();

/// `text` (UTF-8, its line ends kept) with its longer lines broken between words so that they fit
/// into `width` columns; a continued line begins with `indent` spaces.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent,
                                  std::size_t width = output_width());

/// Prints wrapped(text, indent) to standard output.
void print_wrapped(std::string_view text, std::size_t indent = 0);

/// A table of one row per thing. Columns that do not fit next to the others go into a further block
/// below, which repeats the first column: nothing is cut off.
class Table {
  public:
    /// The first column's, left-aligned; '\n' in a heading makes further lines.
    explicit Table(std::string heading) : headings_{std::move(heading)} {}
    /// A further column, right-aligned.
    void add_column(std::string heading) { headings_.push_back(std::move(heading)); }
    /// One cell for each column; those that lack are empty.
    void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    [[nodiscard]] std::string text(std::size_t width = output_width()) const;

  private:
    std::vector<std::string> headings_;
    std::vector<std::vector<std::string>> rows_;
};

/// Flushes standard output. False, with a message on standard error, if something that was printed
/// to it is lost (a full disk, /dev/full): the command must not succeed then.
[[nodiscard]] bool output_arrived() noexcept;

}  // namespace millrace::tools
