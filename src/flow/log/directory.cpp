// A log's folder, see the header.
#include "log/directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

#include "millrace/base/detail/random.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::flow::detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* attempt_directory = "keep a log in files";
/// Older epochs are forgotten: a reader that comes from one of them is judged by those that are
/// known.
constexpr std::size_t most_epochs = 1024;
constexpr std::string_view segment_suffix = ".segment";

struct LogHead {
    std::array<char, 8> magic{'M', 'R', 'L', 'O', 'G', 'H', 'E', 'A'};
    std::uint32_t format = 1;
    std::uint32_t item_size = 0;
    std::uint32_t item_alignment = 0;
    std::uint32_t epoch = 0;
    std::uint64_t item_name = 0;
    std::uint64_t sequence = 0;
    std::uint64_t epochs = 0;  ///< numbers that follow; then the checksum of all before it
};
static_assert(sizeof(LogHead) == 48);

std::string head_path(const std::string& folder) { return folder + "/log"; }

[[noreturn]] void fail_on(const std::string& path, int error) {
    base::throw_errno(error, attempt_directory, path,
                      "may this process write in LogOptions::directory?");
}

}  // namespace

LogDirectory::LogDirectory(std::string path, const LogShape& shape)
    : path_{std::move(path)}, shape_{shape} {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) fail_on(path_, error.value());
    folder_ =
        base::above_standard_streams(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder_ < 0) fail_on(path_, errno);
    try {
        lock();
        if (!read()) {
            sequence_ = base::random_bits() | 1;
            // Before there is a sequence no segment is one of it.
            set_aside(segments());
        }
    } catch (...) {
        ::close(folder_);
        throw;
    }
}

LogDirectory::~LogDirectory() { ::close(folder_); }

void LogDirectory::lock() {
    if (::flock(folder_, LOCK_EX | LOCK_NB) == 0) return;
    if (errno != EWOULDBLOCK) fail_on(path_, errno);
    throw base::Error{base::ErrorCode::system, attempt_directory, path_,
                      "another log has it, in this process or another one, or in a child that one "
                      "has made",
                      "end that one first, or name another LogOptions::directory"};
}

bool LogDirectory::read() {
    std::ifstream file{head_path(path_), std::ios::binary};
    if (!file) return false;
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    LogHead head;
    std::uint64_t checksum = 0;
    const auto refuse = [&](base::ErrorCode code, std::string why, std::string remedy) {
        throw base::Error{code, "take up a log again", head_path(path_), std::move(why),
                          std::move(remedy)};
    };
    const auto damaged = [&] {
        refuse(base::ErrorCode::protocol, "it is damaged: its checksum does not fit",
               "name another LogOptions::directory, or bring back a copy of this one");
    };
    if (text.size() < sizeof head + sizeof checksum) damaged();
    std::memcpy(&head, text.data(), sizeof head);
    std::memcpy(&checksum, text.data() + text.size() - sizeof checksum, sizeof checksum);
    if (checksum != XXH3_64bits(text.data(), text.size() - sizeof checksum)) damaged();
    if (head.magic != LogHead{}.magic || head.format != LogHead{}.format ||
        head.epochs != (text.size() - sizeof head - sizeof checksum) / sizeof(std::uint64_t)) {
        refuse(base::ErrorCode::version_mismatch, "another version of the library wrote it",
               "use that version, or name another LogOptions::directory");
    }
    if (LogShape{head.item_size, head.item_alignment, head.item_name} != shape_) {
        refuse(base::ErrorCode::invalid_argument,
               fmt::format("its items are others: of {} bytes, aligned to {}; here they are of {}, "
                           "aligned to {}",
                           head.item_size, head.item_alignment, shape_.item_size,
                           shape_.item_alignment),
               "name another LogOptions::directory, or the item type as it was "
               "(flow/item_name.hpp)");
    }
    sequence_ = head.sequence;
    epoch_ = head.epoch;
    begins_.resize(head.epochs);
    std::memcpy(begins_.data(), text.data() + sizeof head, begins_.size() * sizeof(std::uint64_t));
    return true;
}

void LogDirectory::begin_epoch(std::uint64_t position) {
    if (!begins_.empty()) ++epoch_;
    begins_.push_back(position);
    if (begins_.size() > most_epochs) begins_.erase(begins_.begin());
    write();
}

void LogDirectory::write() const {
    LogHead head;
    head.item_size = shape_.item_size;
    head.item_alignment = shape_.item_alignment;
    head.item_name = shape_.item_name;
    head.sequence = sequence_;
    head.epoch = epoch_;
    head.epochs = begins_.size();
    std::string text{reinterpret_cast<const char*>(&head), sizeof head};
    text.append(reinterpret_cast<const char*>(begins_.data()),
                begins_.size() * sizeof(std::uint64_t));
    const std::uint64_t checksum = XXH3_64bits(text.data(), text.size());
    text.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);

    // Aside, and then in one step: a process that is cut short leaves the one before.
    const std::string path = head_path(path_);
    const std::string aside = path + ".new";
    const int file = base::above_standard_streams(
        ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (file < 0) fail_on(aside, errno);
    const bool is_written =
        ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
        ::fsync(file) == 0;
    const int error = errno;
    ::close(file);
    if (!is_written) fail_on(aside, error);
    if (::rename(aside.c_str(), path.c_str()) != 0) fail_on(path, errno);
    if (::fsync(folder_) != 0) fail_on(path_, errno);
}

std::string LogDirectory::path_of(std::uint64_t base) const {
    return fmt::format("{}/{:020}{}", path_, base, segment_suffix);
}

std::vector<std::uint64_t> LogDirectory::segments() const {
    std::vector<std::uint64_t> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator{path_, error}) {
        const std::string name = entry.path().filename();
        std::uint64_t base = 0;
        const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), base);
        if (status != std::errc{} || std::string_view{end} != segment_suffix) continue;
        if (path_of(base) == entry.path()) found.push_back(base);
    }
    if (error) fail_on(path_, error.value());
    std::sort(found.begin(), found.end());
    return found;
}

void LogDirectory::remove(const std::string& path) const noexcept {
    if (::unlink(path.c_str()) == 0) return;
    base::log(base::LogLevel::warn, "flow", "{} cannot be removed: {}", path,
              base::describe_errno(errno));
}

void LogDirectory::set_aside(std::span<const std::uint64_t> bases) const {
    for (const std::uint64_t base : bases) {
        const std::string from = path_of(base);
        const std::string to = from.substr(0, from.size() - segment_suffix.size()) + ".lost";
        if (::rename(from.c_str(), to.c_str()) != 0) fail_on(from, errno);
        base::log(base::LogLevel::warn, "flow",
                  "{} does not follow what is whole of the log before it: it is {} now", from, to);
    }
}

}  // namespace millrace::flow::detail
