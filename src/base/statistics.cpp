// StatisticsPage: places pages in the process's file, and reads the pages of other processes.
#include "millrace/base/statistics.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "millrace/base/error.hpp"
#include "millrace/base/log.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::base {
namespace {

constexpr std::uint64_t file_magic = 0x6d72'7374'6174'7332;  // "mrstats2"
constexpr std::uint64_t page_magic = 0x6d72'7374'7061'6765;  // "mrstpage"
constexpr std::uint64_t gap_magic = 0x6d72'7374'2067'6170;   // "mrst gap"
constexpr std::uint32_t file_version = 2;
constexpr std::string_view file_name = "millrace-stats:pages";
constexpr std::uint32_t most_counters = 65'536;  // of a page that is read, not trusted
constexpr std::uint32_t fewest_lines = 1024;     // of a file: 64 KiB
constexpr std::uint32_t most_lines = most_counters + 2;
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct FileHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t lines;
    char unused[48];
};
struct Header {
    std::uint64_t magic;
    std::uint32_t lines;  // up to the next header
    std::uint32_t count;
    char title[48];
};
struct Cell {
    char name[56];
    std::uint64_t value;
};
constexpr std::size_t line = 64;
static_assert(sizeof(FileHeader) == line && sizeof(Header) == line && sizeof(Cell) == line);
static_assert(offsetof(Header, title) == 16 && offsetof(Cell, value) == 56);

Header* header_at(void* memory, std::size_t index) noexcept {
    return reinterpret_cast<Header*>(static_cast<std::byte*>(memory) + index * line);
}
Cell* cells_of(void* memory) noexcept { return reinterpret_cast<Cell*>(header_at(memory, 1)); }

/// The text up to its NUL, or all of the field.
template <std::size_t N>
std::string text_of(const char (&field)[N]) {
    return std::string{field, strnlen(field, N)};
}

using Cells = std::vector<std::pair<std::string, std::uint64_t>>;

Cells read_cells(void* page, std::size_t count) {
    Cells counters;
    counters.reserve(count);
    Cell* cells = cells_of(page);
    for (std::size_t i = 0; i < count; ++i) {
        // Aligned, so a plain 8-byte load on the machines this is for; also of a read-only page.
        std::atomic_ref<std::uint64_t> value{cells[i].value};
        counters.emplace_back(text_of(cells[i].name), value.load(std::memory_order_relaxed));
    }
    return counters;
}

// ---- this process's pages

/// A file of pages and gaps between them, one behind the other.
class File {
  public:
    /// Throws Error for `object`.
    File(std::uint32_t lines, const std::string& object) : lines_{lines} {
        const std::size_t size = lines * line;
        file_ = above_standard_streams(
            ::memfd_create(std::string{file_name}.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
        if (file_ < 0) throw_errno(errno, "create a statistics page", object);
        // fallocate, not ftruncate: memory that is missing must be told here, not by SIGBUS later.
        const int allocated = ::posix_fallocate(file_, 0, static_cast<off_t>(size));
        if (allocated != 0 || ::fcntl(file_, F_ADD_SEALS, seals) != 0) {
            const int error = allocated != 0 ? allocated : errno;
            ::close(file_);
            throw_errno(error, "create a statistics page", object, "free memory");
        }
        memory_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
        if (memory_ == MAP_FAILED) {
            const int error = errno;
            ::close(file_);
            throw_errno(error, "map a statistics page", object, "free memory");
        }
        put_gap(1, lines_ - 1);
        auto* header = static_cast<FileHeader*>(memory_);
        header->version = file_version;
        header->lines = lines_;
        std::atomic_ref{header->magic}.store(file_magic, std::memory_order_release);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File() {
        ::munmap(memory_, lines_ * line);
        ::close(file_);
    }

    [[nodiscard]] bool holds(const void* page) const noexcept {
        const auto offset =
            reinterpret_cast<std::uintptr_t>(page) - reinterpret_cast<std::uintptr_t>(memory_);
        return offset < lines_ * line;
    }
    [[nodiscard]] bool is_empty() const noexcept { return used_ == 0; }
    [[nodiscard]] std::uint32_t lines() const noexcept { return lines_; }

    /// Zeroed lines in which nobody looks for a page yet, or null.
    [[nodiscard]] Header* take(std::uint32_t wanted) noexcept {
        if (lines_ - 1 - used_ < wanted) return nullptr;
        bool passed_gap = false;
        for (std::uint32_t at = first_gap_; at < lines_; at += header_at(memory_, at)->lines) {
            Header* const gap = header_at(memory_, at);
            if (gap->magic != gap_magic) {
                if (!passed_gap) first_gap_ = at + gap->lines;
                continue;
            }
            passed_gap = true;
            // Gaps that lie together become one.
            while (at + gap->lines < lines_ &&
                   header_at(memory_, at + gap->lines)->magic == gap_magic) {
                gap->lines += header_at(memory_, at + gap->lines)->lines;
            }
            if (gap->lines < wanted) continue;
            // A reader goes from header to header: what follows is there before it is pointed at.
            if (gap->lines > wanted) put_gap(at + wanted, gap->lines - wanted);
            std::memset(gap + 1, 0, (wanted - 1) * line);
            std::memset(gap->title, 0, sizeof gap->title);
            std::atomic_ref{gap->lines}.store(wanted, std::memory_order_release);
            used_ += wanted;
            return gap;
        }
        return nullptr;
    }
    void give_back(Header* page) noexcept {
        used_ -= page->lines;
        const auto offset = reinterpret_cast<std::byte*>(page) - static_cast<std::byte*>(memory_);
        first_gap_ = std::min(first_gap_, static_cast<std::uint32_t>(offset / line));
        std::atomic_ref{page->magic}.store(gap_magic, std::memory_order_release);
    }

  private:
    void put_gap(std::uint32_t at, std::uint32_t lines) noexcept {
        Header* const gap = header_at(memory_, at);
        gap->lines = lines;
        gap->count = 0;
        std::atomic_ref{gap->magic}.store(gap_magic, std::memory_order_release);
    }

    int file_ = -1;
    void* memory_ = nullptr;
    std::uint32_t lines_;
    std::uint32_t used_ = 0;
    std::uint32_t first_gap_ = 1;  ///< there is none before it
};

struct Files {
    std::mutex mutex;
    const pid_t owner = getpid();
    std::vector<std::unique_ptr<File>> all;
};

/// A child made by fork begins with none: it writes no pages into its parent's files, and takes no
/// lock that another thread of the parent may have held. What it inherited is left alone. Pages may
/// outlive main, so these are never destroyed.
Files& files() {
    static std::atomic<Files*> current{nullptr};
    Files* known = current.load(std::memory_order_acquire);
    if (known != nullptr && known->owner == getpid()) return *known;
    auto* const made = new Files;
    if (current.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *known;
}

// ---- other processes'

/// What lies at `at`, if it is a page that was whole while it was read.
std::optional<StatisticsPage::Snapshot> read_page(void* page, int pid) {
    const auto before = *static_cast<const Header*>(page);
    if (before.magic != page_magic || before.count >= before.lines) return std::nullopt;
    std::atomic_thread_fence(std::memory_order_acquire);
    StatisticsPage::Snapshot snapshot{pid, text_of(before.title), read_cells(page, before.count)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (std::memcmp(&before, page, sizeof before) != 0) return std::nullopt;
    return snapshot;
}

/// Maps the file behind `path` if it is one of ours, and copies what its pages say.
void read_file(const std::string& path, int pid, std::vector<StatisticsPage::Snapshot>& snapshots) {
    const int file =
        above_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file < 0) return;
    struct stat status {};
    // A file that cannot shrink cannot raise SIGBUS while it is read.
    if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_size >= static_cast<off_t>(2 * line) &&
        status.st_size <= static_cast<off_t>(most_lines * line) &&
        (::fcntl(file, F_GET_SEALS) & seals) == seals) {
        const auto size = static_cast<std::size_t>(status.st_size);
        void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
        if (memory != MAP_FAILED) {
            const auto header = *static_cast<const FileHeader*>(memory);
            const std::size_t lines = header.lines;
            if (header.magic == file_magic && header.version == file_version &&
                lines * line == size) {
                for (std::size_t at = 1; at < lines;) {
                    const auto next = *header_at(memory, at);
                    // Pages move while they are read, or somebody lies: the next look sees more.
                    const bool known = next.magic == page_magic || next.magic == gap_magic;
                    if (!known || next.lines == 0 || next.lines > lines - at) break;
                    if (auto page = read_page(header_at(memory, at), pid)) {
                        snapshots.push_back(std::move(*page));
                    }
                    at += next.lines;
                }
            }
            ::munmap(memory, size);
        }
    }
    ::close(file);
}

}  // namespace

StatisticsPage::StatisticsPage(std::string_view title,
                               std::initializer_list<std::string_view> names) {
    const auto object = fmt::format("page '{}' of {} counters", title, names.size());
    const auto refuse = [&](std::string cause) {
        throw Error{ErrorCode::invalid_argument, "create a statistics page", object,
                    std::move(cause), "use a shorter name"};
    };
    if (title.size() >= sizeof(Header::title)) refuse("the title is longer than 47 bytes");
    for (const auto name : names) {
        if (name.size() >= sizeof(Cell::name)) {
            refuse(fmt::format("the counter name '{}' is longer than 55 bytes", name));
        }
    }
    if (names.size() > most_counters) {
        throw Error{ErrorCode::invalid_argument, "create a statistics page", object,
                    fmt::format("a page holds at most {} counters", most_counters),
                    "use several pages"};
    }

    const auto wanted = static_cast<std::uint32_t>(names.size() + 1);
    Files& process = files();
    const std::lock_guard guard{process.mutex};
    Header* header = nullptr;
    for (const auto& file : process.all) {
        if ((header = file->take(wanted)) != nullptr) break;
    }
    if (header == nullptr) {
        // Twice as large as all there are: thousands of pages take a handful of descriptors.
        std::uint32_t lines = 0;
        for (const auto& file : process.all) {
            lines = std::min(lines + 2 * file->lines(), most_lines);
        }
        lines = std::max({lines, fewest_lines, wanted + 1});
        process.all.push_back(std::make_unique<File>(lines, object));
        header = process.all.back()->take(wanted);
    }
    std::memcpy(header->title, title.data(), title.size());
    Cell* cell = cells_of(header);
    for (const auto name : names) std::memcpy((cell++)->name, name.data(), name.size());
    header->count = static_cast<std::uint32_t>(names.size());
    // The magic last: a reader never sees a page that is half made.
    std::atomic_ref{header->magic}.store(page_magic, std::memory_order_release);
    memory_ = header;
    size_ = wanted * line;
}

StatisticsPage::StatisticsPage(StatisticsPage&& other) noexcept
    : memory_{std::exchange(other.memory_, nullptr)}, size_{std::exchange(other.size_, 0)} {}

StatisticsPage& StatisticsPage::operator=(StatisticsPage&& other) noexcept {
    StatisticsPage taken{std::move(other)};
    std::swap(memory_, taken.memory_);
    std::swap(size_, taken.size_);
    return *this;
}

StatisticsPage::~StatisticsPage() {
    if (memory_ == nullptr) return;
    Files& process = files();
    const std::lock_guard guard{process.mutex};
    const auto file = std::find_if(process.all.begin(), process.all.end(),
                                   [&](const auto& one) { return one->holds(memory_); });
    if (file == process.all.end()) return;  // the parent's
    (*file)->give_back(static_cast<Header*>(memory_));
    if ((*file)->is_empty()) process.all.erase(file);
}

Counter StatisticsPage::counter(std::size_t index) noexcept {
    if (size_ < (index + 2) * line) {
        // A counter that does not exist is a slip in the program, not an outcome.
        log_line(LogLevel::error, "base", "a statistics page was asked for a counter it has not");
        flush_log();
        std::abort();
    }
    return Counter{&cells_of(memory_)[index].value};
}

Cells StatisticsPage::read() const {
    if (memory_ == nullptr) return {};
    return read_cells(memory_, size_ / line - 1);
}

std::vector<StatisticsPage::Snapshot> StatisticsPage::of_process(int pid) {
    std::vector<Snapshot> snapshots;
    const auto folder = fmt::format("/proc/{}/fd", pid);
    DIR* directory = ::opendir(folder.c_str());
    if (directory == nullptr) return snapshots;
    const auto wanted = fmt::format("/memfd:{}", file_name);
    while (const dirent* entry = ::readdir(directory)) {
        const auto path = fmt::format("{}/{}", folder, entry->d_name);
        char target[PATH_MAX];
        const ssize_t length = ::readlink(path.c_str(), target, sizeof(target));
        if (length <= 0) continue;
        if (!std::string_view{target, static_cast<std::size_t>(length)}.starts_with(wanted)) {
            continue;
        }
        read_file(path, pid, snapshots);
    }
    ::closedir(directory);
    return snapshots;
}

}  // namespace millrace::base
