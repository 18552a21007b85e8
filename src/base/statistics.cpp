// StatisticsPage: creates the sealed page, and reads the pages of other processes.
#include "millrace/base/statistics.hpp"

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>

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

constexpr std::uint64_t page_magic = 0x6d72'7374'6174'7331;  // "mrstats1"
constexpr std::uint32_t page_version = 1;
constexpr std::string_view name_prefix = "millrace-stats:";
constexpr std::uint32_t most_counters = 65'536;  // of a page that is read, not trusted
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Header {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t count;
    char title[48];
};
struct Cell {
    char name[56];
    std::uint64_t value;
};
static_assert(sizeof(Header) == 64 && sizeof(Cell) == 64);
static_assert(offsetof(Header, title) == 16 && offsetof(Cell, value) == 56);

std::size_t size_of_page(std::size_t count) noexcept {
    return sizeof(Header) + count * sizeof(Cell);
}

Cell* cells_of(void* memory) noexcept {
    return reinterpret_cast<Cell*>(static_cast<std::byte*>(memory) + sizeof(Header));
}

/// The text up to its NUL, or all of the field.
template <std::size_t N>
std::string text_of(const char (&field)[N]) {
    return std::string{field, strnlen(field, N)};
}

std::vector<std::pair<std::string, std::uint64_t>> read_cells(void* memory, std::size_t count) {
    std::vector<std::pair<std::string, std::uint64_t>> counters;
    counters.reserve(count);
    Cell* cells = cells_of(memory);
    for (std::size_t i = 0; i < count; ++i) {
        // Aligned, so a plain 8-byte load on the machines this is for; also of a read-only page.
        std::atomic_ref<std::uint64_t> value{cells[i].value};
        counters.emplace_back(text_of(cells[i].name), value.load(std::memory_order_relaxed));
    }
    return counters;
}

/// Maps the page behind `path` if it is one of ours, and copies what it says.
bool read_page(const std::string& path, int pid, StatisticsPage::Snapshot& snapshot) {
    const int file =
        above_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file < 0) return false;
    bool good = false;
    struct stat status {};
    // A file that cannot shrink cannot raise SIGBUS while it is read.
    if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_size >= static_cast<off_t>(sizeof(Header)) &&
        status.st_size <= static_cast<off_t>(size_of_page(most_counters)) &&
        (::fcntl(file, F_GET_SEALS) & seals) == seals) {
        const auto size = static_cast<std::size_t>(status.st_size);
        void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
        if (memory != MAP_FAILED) {
            const auto header = *static_cast<const Header*>(memory);
            if (header.magic == page_magic && header.version == page_version &&
                header.count <= most_counters && size_of_page(header.count) == size) {
                snapshot = {pid, text_of(header.title), read_cells(memory, header.count)};
                good = true;
            }
            ::munmap(memory, size);
        }
    }
    ::close(file);
    return good;
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

    const auto file_name = fmt::format("{}{}", name_prefix, title);
    const std::size_t size = size_of_page(names.size());
    const int file =
        above_standard_streams(::memfd_create(file_name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (file < 0) throw_errno(errno, "create a statistics page", object);
    // fallocate, not ftruncate: memory that is missing must be told here, not by SIGBUS later.
    const int allocated = ::posix_fallocate(file, 0, static_cast<off_t>(size));
    if (allocated != 0 || ::fcntl(file, F_ADD_SEALS, seals) != 0) {
        const int error = allocated != 0 ? allocated : errno;
        ::close(file);
        throw_errno(error, "create a statistics page", object, "free memory");
    }
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        const int error = errno;
        ::close(file);
        throw_errno(error, "map a statistics page", object, "free memory");
    }
    auto* header = static_cast<Header*>(memory);
    std::memcpy(header->title, title.data(), title.size());
    Cell* cell = cells_of(memory);
    for (const auto name : names) std::memcpy((cell++)->name, name.data(), name.size());
    header->version = page_version;
    header->count = static_cast<std::uint32_t>(names.size());
    // The magic last: a reader never sees a page that is half made.
    std::atomic_ref{header->magic}.store(page_magic, std::memory_order_release);
    descriptor_ = file;
    memory_ = memory;
    size_ = size;
}

StatisticsPage::StatisticsPage(StatisticsPage&& other) noexcept
    : descriptor_{std::exchange(other.descriptor_, -1)},
      memory_{std::exchange(other.memory_, nullptr)},
      size_{std::exchange(other.size_, 0)} {}

StatisticsPage& StatisticsPage::operator=(StatisticsPage&& other) noexcept {
    StatisticsPage taken{std::move(other)};
    std::swap(descriptor_, taken.descriptor_);
    std::swap(memory_, taken.memory_);
    std::swap(size_, taken.size_);
    return *this;
}

StatisticsPage::~StatisticsPage() {
    if (memory_ != nullptr) ::munmap(memory_, size_);
    if (descriptor_ >= 0) ::close(descriptor_);
}

Counter StatisticsPage::counter(std::size_t index) noexcept {
    if (size_ < size_of_page(index + 1)) {
        // A counter that does not exist is a slip in the program, not an outcome.
        log_line(LogLevel::error, "base", "a statistics page was asked for a counter it has not");
        flush_log();
        std::abort();
    }
    return Counter{&cells_of(memory_)[index].value};
}

std::vector<std::pair<std::string, std::uint64_t>> StatisticsPage::read() const {
    if (memory_ == nullptr) return {};
    return read_cells(memory_, (size_ - sizeof(Header)) / sizeof(Cell));
}

std::vector<StatisticsPage::Snapshot> StatisticsPage::of_process(int pid) {
    std::vector<Snapshot> snapshots;
    const auto folder = fmt::format("/proc/{}/fd", pid);
    DIR* directory = ::opendir(folder.c_str());
    if (directory == nullptr) return snapshots;
    const auto wanted = fmt::format("/memfd:{}", name_prefix);
    while (const dirent* entry = ::readdir(directory)) {
        const auto path = fmt::format("{}/{}", folder, entry->d_name);
        char target[PATH_MAX];
        const ssize_t length = ::readlink(path.c_str(), target, sizeof(target));
        if (length <= 0) continue;
        if (!std::string_view{target, static_cast<std::size_t>(length)}.starts_with(wanted)) {
            continue;
        }
        Snapshot snapshot;
        if (read_page(path, pid, snapshot)) snapshots.push_back(std::move(snapshot));
    }
    ::closedir(directory);
    return snapshots;
}

}  // namespace millrace::base
