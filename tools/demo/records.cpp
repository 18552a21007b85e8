#include "records.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <system_error>

#include "millrace/base/error.hpp"

namespace millrace::tools::demo {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> regular_files(const fs::path& root) {
    std::error_code error;
    if (fs::is_regular_file(root, error)) return {root};
    std::vector<fs::path> files;
    fs::recursive_directory_iterator it{root, fs::directory_options::skip_permission_denied, error};
    if (error) {
        throw base::Error{base::ErrorCode::not_found, "read files", root.string(), error.message(),
                          "name a folder or file that exists and that you may read"};
    }
    for (const fs::recursive_directory_iterator end; it != end; it.increment(error)) {
        if (error) break;
        std::error_code status_error;
        if (it->symlink_status(status_error).type() == fs::file_type::regular) {
            files.push_back(it->path());
        }
    }
    std::sort(files.begin(), files.end());
    return files;
}

}  // namespace

std::string RecordSet::left_out(std::uint64_t limit) const {
    const std::size_t all = unreadable_files + files_beyond_limit;
    if (all == 0) return {};
    std::string why;
    if (files_beyond_limit != 0) {
        why = fmt::format("{} beyond the limit of {:.0f} MB (--limit)", files_beyond_limit,
                          static_cast<double>(limit) / 1e6);
    }
    if (unreadable_files != 0) {
        why += fmt::format("{}{} unreadable", why.empty() ? "" : ", ", unreadable_files);
    }
    return fmt::format("{} left out, and in no figure: {}",
                       all == 1 ? std::string{"1 file"} : fmt::format("{} files", all), why);
}

std::uint64_t hash_of(std::span<const std::byte> content) noexcept {
    return XXH3_64bits(content.data(), content.size());
}

RecordSet load_records(const fs::path& root, std::uint64_t limit, std::uint32_t record_size,
                       const std::function<void(std::uint64_t)>& progress) {
    RecordSet set;
    for (const fs::path& path : regular_files(root)) {
        std::error_code error;
        const std::uint64_t size = fs::file_size(path, error);
        if (error) {
            ++set.unreadable_files;
            continue;
        }
        if (size > limit - set.bytes) {
            ++set.files_beyond_limit;
            continue;
        }
        std::ifstream in{path, std::ios::binary};
        const std::size_t begin = set.content.size();
        set.content.resize(begin + size);
        in.read(reinterpret_cast<char*>(set.content.data() + begin),
                static_cast<std::streamsize>(size));
        if (static_cast<std::uint64_t>(std::max<std::streamsize>(in.gcount(), 0)) != size) {
            set.content.resize(begin);
            ++set.unreadable_files;
            continue;
        }
        const auto file = static_cast<std::uint32_t>(set.files++);
        std::uint64_t done = 0;
        do {
            const auto length =
                static_cast<std::uint32_t>(std::min<std::uint64_t>(record_size, size - done));
            const std::size_t offset = begin + done;
            set.records.push_back(
                {offset, length, file,
                 hash_of(std::span<const std::byte>{set.content}.subspan(offset, length))});
            done += length;
        } while (done < size);
        set.bytes += size;
        if (progress) progress(set.bytes);
    }
    if (set.records.empty()) {
        throw base::Error{
            base::ErrorCode::not_found, "read files", root.string(),
            set.left_out(limit).empty()
                ? std::string{"there is no regular file"}
                : "no regular file there could be read within the limit: " + set.left_out(limit),
            "name another folder, or raise --limit"};
    }
    return set;
}

}  // namespace millrace::tools::demo
