// What a study writes besides its tables: the JSON document, and its figures as SVG.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "command_line/json_output.hpp"

namespace millrace::bench {

/// Before anything is measured: throws Error if what write_document() puts into `folder` cannot be
/// written, or its disk is full; says on standard error if there will be no plots. Nothing for an
/// empty folder.
void check_plots(const std::string& study, const std::string& folder);

/// Writes `document` where `json` asks for it and, if `folder` is not empty, there with a plot of
/// each of its "figures" and "maps" (scripts/plot-figures says what it reads). `document["study"]`
/// names the files. `lines`: what goes into a .csv file next to it; empty: there is none. Without
/// Python and matplotlib there are no plots, and a line says so. Throws
/// Error if something cannot be written.
void write_document(const nlohmann::json& document, const tools::JsonOutput& json,
                    const std::string& folder, const std::string& lines = {});

/// The "figures" of a document, a line for each point of each series, as CSV.
[[nodiscard]] std::string lines_of(const nlohmann::json& document);

/// "0.52 0.31 0.18 1/213 4711", as the system tells it.
[[nodiscard]] std::string load_average();

}  // namespace millrace::bench
