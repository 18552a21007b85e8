// StatisticsPage: places pages in the process's file, and reads the pages of other processes.
#include "millrace/base/statistics.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <type_traits>

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

constexpr std::uint64_t file_magic = 0x6d72'7374'6174'7333;   // "mrstats3"
constexpr std::uint64_t page_magic = 0x6d72'7374'7061'6765;   // "mrstpage"
constexpr std::uint64_t gap_magic = 0x6d72'7374'2067'6170;    // "mrst gap"
constexpr std::uint64_t names_magic = 0x6d72'7374'6e61'6d65;  // "mrstname"
constexpr std::uint32_t file_version = 4;
constexpr std::string_view file_name = "millrace-stats:pages";
constexpr std::uint32_t most_figures = 65'536;  // of a page that is read, not trusted
constexpr std::uint32_t fewest_lines = 1024;    // of a file: 64 KiB
constexpr std::uint32_t most_lines = 2 * most_figures;
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
struct Name {
    char text[56];
    std::uint32_t kind;
    std::uint32_t unused;
};
constexpr std::size_t line = 64;
static_assert(sizeof(FileHeader) == line && sizeof(Header) == line && sizeof(Name) == line);
static_assert(offsetof(Header, title) == 16);
static_assert(sizeof(Histogram) % 8 == 0 && alignof(Histogram) == 8 &&
              std::is_trivially_copyable_v<Histogram>);

Header* header_at(void* memory, std::size_t index) noexcept {
    return reinterpret_cast<Header*>(static_cast<std::byte*>(memory) + index * line);
}
/// Behind a header: the line of the names, then the values.
std::uint64_t* words_of(void* page) noexcept {
    return reinterpret_cast<std::uint64_t*>(header_at(page, 1));
}
const Name* names_of(const void* names) noexcept {
    return reinterpret_cast<const Name*>(static_cast<const std::byte*>(names) + line);
}

std::size_t words_of_kind(std::uint32_t kind) noexcept {
    return kind == static_cast<std::uint32_t>(FigureKind::histogram) ? sizeof(Histogram) / 8 : 1;
}

/// The text up to its NUL, or all of the field.
template <std::size_t N>
std::string text_of(const char (&field)[N]) {
    return std::string{field, strnlen(field, N)};
}

/// Aligned, so a plain 8-byte load on the machines this is for; also of a read-only page.
std::uint64_t load(std::uint64_t& word) noexcept {
    return std::atomic_ref{word}.load(std::memory_order_relaxed);
}

StatisticsPage::Distribution distribution_of(std::string name, const Histogram& histogram) {
    return {.name = std::move(name),
            .count = histogram.count(),
            .mean = histogram.mean(),
            .least = histogram.least(),
            .median = histogram.quantile(0.5),
            .p90 = histogram.quantile(0.9),
            .p99 = histogram.quantile(0.99),
            .p999 = histogram.quantile(0.999),
            .most = histogram.most()};
}

/// What `count` names at `names` say of the `words` from `values` on. False: they have no room.
bool read_values(const Name* names, std::size_t count, std::uint64_t* values, std::size_t words,
                 StatisticsPage::Snapshot& into) {
    for (std::size_t i = 0; i != count; ++i) {
        const std::uint32_t kind = names[i].kind;
        const std::size_t needed = words_of_kind(kind);
        if (needed > words) return false;
        std::string name = text_of(names[i].text);
        switch (static_cast<FigureKind>(kind)) {
            case FigureKind::counter: into.counters.emplace_back(name, load(*values)); break;
            case FigureKind::gauge: into.gauges.emplace_back(name, load(*values)); break;
            case FigureKind::histogram:
                into.histograms.push_back(
                    distribution_of(std::move(name), *reinterpret_cast<const Histogram*>(values)));
                break;
            default: return false;
        }
        values += needed;
        words -= needed;
    }
    return true;
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
    [[nodiscard]] void* memory() const noexcept { return memory_; }
    [[nodiscard]] std::uint32_t lines() const noexcept { return lines_; }

    /// A page for `names`, of which nobody reads yet: zeroed, but for the line of its names. Null:
    /// no room. Throws bad_alloc.
    [[nodiscard]] Header* take_page(const std::vector<Name>& names, std::uint32_t wanted) {
        auto known = std::find_if(names_.begin(), names_.end(), [&](const NamesInUse& one) {
            const Header* const record = header_at(memory_, one.at);
            return record->count == names.size() &&
                   (names.empty() ||
                    std::memcmp(names_of(record), names.data(), names.size() * sizeof(Name)) == 0);
        });
        if (known == names_.end()) {
            names_.reserve(names_.size() + 1);
            const auto count = static_cast<std::uint32_t>(names.size());
            Header* const record = take(count + 1);
            if (record == nullptr) return nullptr;
            if (!names.empty()) {
                std::memcpy(record + 1, names.data(), names.size() * sizeof(Name));
            }
            record->count = count;
            std::atomic_ref{record->magic}.store(names_magic, std::memory_order_release);
            names_.push_back({line_of(record), 0});
            known = std::prev(names_.end());
        }
        Header* const page = take(wanted);
        if (page == nullptr) {
            forget_if_unused(known);
            return nullptr;
        }
        ++known->users;
        *words_of(page) = known->at;
        return page;
    }
    void give_back_page(Header* page) noexcept {
        const std::uint64_t names = *words_of(page);
        give_back(page);
        const auto known = std::find_if(names_.begin(), names_.end(),
                                        [&](const NamesInUse& one) { return one.at == names; });
        if (known == names_.end()) return;  // somebody wrote into the page
        --known->users;
        forget_if_unused(known);
    }

  private:
    struct NamesInUse {
        std::uint32_t at;
        std::size_t users;
    };

    [[nodiscard]] std::uint32_t line_of(const Header* record) const noexcept {
        const auto offset =
            reinterpret_cast<const std::byte*>(record) - static_cast<const std::byte*>(memory_);
        return static_cast<std::uint32_t>(offset / static_cast<std::ptrdiff_t>(line));
    }
    void forget_if_unused(std::vector<NamesInUse>::iterator names) noexcept {
        if (names->users != 0) return;
        give_back(header_at(memory_, names->at));
        names_.erase(names);
    }
    /// Zeroed lines in which nobody looks for a record yet, or null.
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
        first_gap_ = std::min(first_gap_, line_of(page));
        std::atomic_ref{page->magic}.store(gap_magic, std::memory_order_release);
    }
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
    std::vector<NamesInUse> names_;
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

/// What lies at `page`, of a file of `lines`, if it is a page that was whole while it was read.
std::optional<StatisticsPage::Snapshot> read_page(void* memory, std::size_t lines, void* page,
                                                  int pid) {
    const auto before = *static_cast<const Header*>(page);
    if (before.magic != page_magic || before.lines < 2 || before.count > most_figures) {
        return std::nullopt;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    std::uint64_t* const words = words_of(page);
    const std::uint64_t at = load(*words);
    if (at == 0 || at >= lines) return std::nullopt;
    const void* const names = header_at(memory, at);
    const auto names_before = *static_cast<const Header*>(names);
    if (names_before.magic != names_magic || names_before.lines > lines - at ||
        names_before.count != before.count || names_before.count >= names_before.lines) {
        return std::nullopt;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    StatisticsPage::Snapshot snapshot;
    snapshot.pid = pid;
    snapshot.title = text_of(before.title);
    const std::size_t room = (before.lines - 1) * (line / 8) - 1;
    // Copied: what was looked at is what is used.
    const std::vector<Name> copied(names_of(names), names_of(names) + before.count);
    if (!read_values(copied.data(), copied.size(), words + 1, room, snapshot)) return std::nullopt;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (std::memcmp(&before, page, sizeof before) != 0 ||
        std::memcmp(&names_before, names, sizeof names_before) != 0) {
        return std::nullopt;
    }
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
                    const bool known = next.magic == page_magic || next.magic == names_magic ||
                                       next.magic == gap_magic;
                    if (!known || next.lines == 0 || next.lines > lines - at) break;
                    if (auto page = read_page(memory, lines, header_at(memory, at), pid)) {
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

namespace {
std::vector<Figure> counters_called(std::initializer_list<std::string_view> names) {
    std::vector<Figure> figures;
    figures.reserve(names.size());
    for (const auto name : names) figures.push_back({name});
    return figures;
}
}  // namespace

StatisticsPage::StatisticsPage(std::string_view title,
                               std::initializer_list<std::string_view> names)
    : StatisticsPage{title, counters_called(names)} {}

StatisticsPage::StatisticsPage(std::string_view title, std::span<const Figure> figures) {
    const auto object = fmt::format("page '{}' of {} figures", title, figures.size());
    const auto refuse = [&](std::string cause, const char* remedy) {
        throw Error{ErrorCode::invalid_argument, "create a statistics page", object,
                    std::move(cause), remedy};
    };
    if (title.size() >= sizeof(Header::title)) {
        refuse("the title is longer than 47 bytes", "use a shorter name");
    }
    std::vector<Name> names;
    std::size_t words = 1;
    for (const auto& [name, kind] : figures) {
        if (name.size() >= sizeof(Name::text)) {
            refuse(fmt::format("the name '{}' is longer than 55 bytes", name),
                   "use a shorter name");
        }
        names.push_back({.text = {}, .kind = static_cast<std::uint32_t>(kind), .unused = 0});
        std::memcpy(names.back().text, name.data(), name.size());
        words += words_of_kind(names.back().kind);
        if (kind == FigureKind::histogram) {
            ++histograms_;
        } else if (histograms_ != 0) {
            refuse(fmt::format("'{}' stands behind a histogram", name), "name histograms last");
        } else {
            ++values_;
        }
    }
    const std::size_t wanted_lines = 1 + (words * 8 + line - 1) / line;
    // A file has room for the page and its names.
    if (wanted_lines + names.size() + 2 > most_lines) {
        refuse(fmt::format("a page holds at most {} bytes with its names", most_lines * line),
               "use several pages");
    }

    const auto wanted = static_cast<std::uint32_t>(wanted_lines);
    Files& process = files();
    const std::lock_guard guard{process.mutex};
    Header* header = nullptr;
    const File* holder = nullptr;
    for (const auto& file : process.all) {
        holder = file.get();
        if ((header = file->take_page(names, wanted)) != nullptr) break;
    }
    if (header == nullptr) {
        // Twice as large as all there are: thousands of pages take a handful of descriptors.
        std::uint32_t lines = 0;
        for (const auto& file : process.all) {
            lines = std::min(lines + 2 * file->lines(), most_lines);
        }
        lines =
            std::max({lines, fewest_lines, wanted + static_cast<std::uint32_t>(names.size()) + 2});
        process.all.push_back(std::make_unique<File>(lines, object));
        holder = process.all.back().get();
        header = process.all.back()->take_page(names, wanted);
    }
    std::memcpy(header->title, title.data(), title.size());
    header->count = static_cast<std::uint32_t>(names.size());
    names_ = header_at(holder->memory(), *words_of(header));
    memory_ = header;
    for (std::size_t i = 0; i != histograms_; ++i) new (&histogram(i)) Histogram;
    // The magic last: a reader never sees a page that is half made.
    std::atomic_ref{header->magic}.store(page_magic, std::memory_order_release);
}

StatisticsPage::StatisticsPage(StatisticsPage&& other) noexcept
    : memory_{std::exchange(other.memory_, nullptr)},
      values_{std::exchange(other.values_, 0)},
      histograms_{std::exchange(other.histograms_, 0)},
      names_{std::exchange(other.names_, nullptr)} {}

StatisticsPage& StatisticsPage::operator=(StatisticsPage&& other) noexcept {
    StatisticsPage taken{std::move(other)};
    std::swap(memory_, taken.memory_);
    std::swap(values_, taken.values_);
    std::swap(histograms_, taken.histograms_);
    std::swap(names_, taken.names_);
    return *this;
}

StatisticsPage::~StatisticsPage() {
    if (memory_ == nullptr) return;
    Files& process = files();
    const std::lock_guard guard{process.mutex};
    const auto file = std::find_if(process.all.begin(), process.all.end(),
                                   [&](const auto& one) { return one->holds(memory_); });
    if (file == process.all.end()) return;  // the parent's
    (*file)->give_back_page(static_cast<Header*>(memory_));
    if ((*file)->is_empty()) process.all.erase(file);
}

namespace {
/// A figure that does not exist is a slip in the program, not an outcome.
[[noreturn, gnu::cold]] void refuse_figure(const char* message) noexcept {
    log_line(LogLevel::error, "base", message);
    flush_log();
    std::abort();
}
}  // namespace

Counter StatisticsPage::counter(std::size_t index) noexcept {
    if (index >= values_) refuse_figure("a statistics page was asked for a counter it has not");
    return Counter{words_of(memory_) + 1 + index};
}

void StatisticsPage::set(std::span<const std::uint64_t> values) noexcept {
    if (values.size() > values_) {
        refuse_figure("a statistics page was told of a counter it has not");
    }
    std::uint64_t* word = words_of(memory_);
    for (const std::uint64_t value : values) Counter{++word}.set(value);
}

Histogram& StatisticsPage::histogram(std::size_t index) noexcept {
    if (index >= histograms_) {
        refuse_figure("a statistics page was asked for a histogram it has not");
    }
    return *(reinterpret_cast<Histogram*>(words_of(memory_) + 1 + values_) + index);
}

std::vector<std::pair<std::string, std::uint64_t>> StatisticsPage::read() const {
    std::vector<std::pair<std::string, std::uint64_t>> values;
    if (memory_ == nullptr) return values;
    std::uint64_t* word = words_of(memory_);
    for (const Name* name = names_of(names_); values.size() != values_; ++name) {
        values.emplace_back(text_of(name->text), load(*++word));
    }
    return values;
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
