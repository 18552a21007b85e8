// The tables that this process shows to its peers, as whoever could write them would: through the
// owner's own mapping, the one that there is. Used by tests that forge entries.
#pragma once

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>

#include "layout/layout.hpp"

namespace millrace::test {

/// Of the node of that fabric, or of the first that this process has; null: it has none.
[[nodiscard]] inline std::byte* shown_tables(const std::string& fabric = "") {
    std::ifstream maps{"/proc/self/maps"};
    for (std::string line; std::getline(maps, line);) {
        if (line.find("/memfd:millrace-node:" + fabric) == std::string::npos) continue;
        unsigned long from = 0;
        char rights[5] = {};
        if (std::sscanf(line.c_str(), "%lx-%*x %4s", &from, rights) == 2 && rights[1] == 'w') {
            return reinterpret_cast<std::byte*>(from);
        }
    }
    return nullptr;
}

[[nodiscard]] inline soft::RegionEntry* shown_regions(const std::string& fabric = "") {
    std::byte* const tables = shown_tables(fabric);
    if (tables == nullptr) return nullptr;
    return reinterpret_cast<soft::RegionEntry*>(tables + soft::region_table_offset);
}

}  // namespace millrace::test
