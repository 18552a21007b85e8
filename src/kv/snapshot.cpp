#include "snapshot.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "millrace/base/clock.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/standard_streams.hpp"

namespace millrace::kv {
namespace {

struct SnapshotHead {
    std::array<char, 8> magic{'M', 'R', 'K', 'V', 'S', 'N', 'A', 'P'};
    std::uint32_t format = 2;
    std::uint32_t order = 0x01020304;
    std::int64_t written_at = 0;
};
static_assert(sizeof(SnapshotHead) == 24);

/// Before an item, or, with a key of no byte, at the end: then the number of items and the
/// checksum.
struct SnapshotItem {
    std::uint32_t key_length = 0;
    std::uint32_t value_length = 0;
    std::int64_t expires_at = 0;
    std::uint64_t note = 0;
};
static_assert(sizeof(SnapshotItem) == 24);
/// Of a key's length: the item may be in the file before that.
constexpr std::uint32_t may_be_again = std::uint32_t{1} << 31;
static_assert(longest_key < may_be_again);

constexpr std::size_t file_buffer = std::size_t{1} << 20;

/// Unix time less the clock's.
std::int64_t unix_offset() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
               .count() -
           base::Clock::now().time_since_epoch().count();
}

/// A descriptor, and the bytes that wait for it or have come from it.
class SnapshotFile {
  public:
    SnapshotFile(std::string path, const char* attempted, int flags)
        : path_{std::move(path)},
          attempted_{attempted},
          descriptor_{base::above_standard_streams(
              ::open(path_.c_str(), flags | O_CLOEXEC, S_IRUSR | S_IWUSR))},
          error_{errno} {}
    SnapshotFile(const SnapshotFile&) = delete;
    SnapshotFile& operator=(const SnapshotFile&) = delete;
    ~SnapshotFile() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }

    [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
    [[noreturn]] void fail() const { base::throw_errno(error_, attempted_, path_); }
    /// errno of the call that opened it, or that failed last.
    [[nodiscard]] int error() const noexcept { return error_; }

    void write(const void* from, std::size_t size) {
        checksum_ = XXH3_64bits_withSeed(from, size, checksum_);
        if (used_ + size > file_buffer) flush();
        if (size > file_buffer) return write_all(static_cast<const char*>(from), size);
        std::memcpy(buffer_.get() + used_, from, size);
        used_ += size;
    }
    void flush() {
        write_all(buffer_.get(), used_);
        used_ = 0;
    }
    void sync() {
        if (::fsync(descriptor_) != 0) fail_now();
    }
    /// False: it ends before.
    [[nodiscard]] bool read(void* to, std::size_t size) {
        auto* at = static_cast<char*>(to);
        for (std::size_t left = size; left != 0;) {
            if (read_at_ == used_ && !fill()) return false;
            const std::size_t some = std::min(left, used_ - read_at_);
            std::memcpy(at, buffer_.get() + read_at_, some);
            read_at_ += some;
            at += some;
            left -= some;
        }
        checksum_ = XXH3_64bits_withSeed(to, size, checksum_);
        return true;
    }
    [[nodiscard]] bool is_at_end() { return read_at_ == used_ && !fill(); }
    /// Of all that was written or read.
    [[nodiscard]] std::uint64_t checksum() const noexcept { return checksum_; }

  private:
    [[noreturn]] void fail_now() {
        error_ = errno;
        fail();
    }
    void write_all(const char* from, std::size_t size) {
        while (size != 0) {
            const ssize_t wrote = ::write(descriptor_, from, size);
            if (wrote < 0 && errno == EINTR) continue;
            if (wrote < 0) fail_now();
            from += wrote;
            size -= static_cast<std::size_t>(wrote);
        }
    }
    bool fill() {
        for (;;) {
            const ssize_t got = ::read(descriptor_, buffer_.get(), file_buffer);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) fail_now();
            used_ = static_cast<std::size_t>(got);
            read_at_ = 0;
            return got != 0;
        }
    }

    const std::string path_;
    const char* const attempted_;
    int descriptor_;
    int error_;
    std::unique_ptr<char[]> buffer_ = std::make_unique_for_overwrite<char[]>(file_buffer);
    std::size_t used_ = 0;
    std::size_t read_at_ = 0;
    std::uint64_t checksum_ = 0;
};

constexpr const char* writes = "write a snapshot of the key-value store";
constexpr const char* reads = "read a snapshot of a key-value store";

/// Items on their way into a file.
class SnapshotWriter {
  public:
    explicit SnapshotWriter(SnapshotFile& file) : file_{file} {
        SnapshotHead head;
        head.written_at = base::Clock::now().time_since_epoch().count() + offset_;
        put(head);
    }
    void add(const Entry& entry, bool is_again) {
        SnapshotItem item{static_cast<std::uint32_t>(entry.key.size()),
                          static_cast<std::uint32_t>(entry.value.size()), 0, entry.note};
        if (is_again) item.key_length |= may_be_again;
        if (entry.expires_at) {
            item.expires_at = entry.expires_at->time_since_epoch().count() + offset_;
        }
        put(item);
        file_.write(entry.key.data(), entry.key.size());
        file_.write(entry.value.data(), entry.value.size());
        ++items_;
    }
    /// How many there are in it.
    std::uint64_t end() {
        put(SnapshotItem{0, 0, static_cast<std::int64_t>(items_), file_.checksum()});
        file_.flush();
        file_.sync();
        return items_;
    }

  private:
    template <class What>
    void put(const What& what) {
        file_.write(&what, sizeof what);
    }

    SnapshotFile& file_;
    const std::int64_t offset_ = unix_offset();
    std::uint64_t items_ = 0;
};

/// Has `write` write a file aside, which then takes the place of `path`. False of `write`: it does
/// not.
bool write_aside(const std::string& path, FunctionRef<bool(SnapshotFile&)> write) {
    const std::string aside = path + ".new";
    bool is_written = false;
    try {
        SnapshotFile file{aside, writes, O_WRONLY | O_CREAT | O_TRUNC};
        if (!file.is_open()) file.fail();
        is_written = write(file);
        if (is_written && ::rename(aside.c_str(), path.c_str()) != 0) {
            base::throw_errno(errno, writes, path);
        }
    } catch (...) {
        ::unlink(aside.c_str());
        throw;
    }
    if (!is_written) {
        ::unlink(aside.c_str());
        return false;
    }
    // So that the name is there after a loss of power, too.
    const std::string folder = std::filesystem::absolute(path).parent_path().string();
    SnapshotFile names{folder, writes, O_RDONLY | O_DIRECTORY};
    if (names.is_open()) names.sync();
    return true;
}

/// Writes what is newer than `since`, which is none before the first walk. Nothing waits for the
/// disk with an item in its hands: what a piece finds is copied first. False: `goes_on` said no.
bool write_newer(const Store& store, std::optional<Version> since, SnapshotWriter& writer,
                 FunctionRef<bool()> goes_on) {
    struct Copied {
        Entry entry;
        std::size_t begin;
    };
    constexpr std::size_t piece = std::size_t{256} << 10;
    // What changes from here on may be met twice by this walk.
    const Version newest = store.moment().newest;
    std::vector<Copied> found;
    std::vector<std::byte> bytes;
    for (Cursor at = Cursor::begin; at != Cursor::end;) {
        at = store.visit_from(at, [&](const Entry& entry) {
            if (bytes.size() >= piece) return false;
            if (since && entry.version <= *since) return true;
            found.push_back({entry, bytes.size()});
            bytes.insert(bytes.end(), entry.key.begin(), entry.key.end());
            bytes.insert(bytes.end(), entry.value.begin(), entry.value.end());
            return true;
        });
        for (Copied& one : found) {
            one.entry.key = std::span{bytes}.subspan(one.begin, one.entry.key.size());
            one.entry.value =
                std::span{bytes}.subspan(one.begin + one.entry.key.size(), one.entry.value.size());
            writer.add(one.entry, since.has_value() || one.entry.version > newest);
        }
        found.clear();
        bytes.clear();
        if (!goes_on()) return false;
    }
    return true;
}

struct SnapshotEntry {
    std::span<const std::byte> key;
    std::span<const std::byte> value;
    std::int64_t expires_at;
    std::uint64_t note;
    bool is_again;
};

/// Hands out all items of a file. What is wrong with it; null: nothing.
const char* each_item(SnapshotFile& file, FunctionRef<void(const SnapshotEntry&)> visit) {
    constexpr const char* cut = "it ends in the middle";
    SnapshotHead head;
    if (!file.read(&head, sizeof head)) return cut;
    if (head.magic != SnapshotHead{}.magic) return "it is no snapshot";
    if (head.format == 0 || head.format > SnapshotHead{}.format ||
        head.order != SnapshotHead{}.order) {
        return "it was written by another version, or on another kind of machine";
    }
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(longest_key + longest_value);
    for (std::uint64_t items = 0;; ++items) {
        const std::uint64_t checksum = file.checksum();
        SnapshotItem item;
        if (!file.read(&item, sizeof item)) return cut;
        if (item.key_length == 0) {
            const bool is_end = item.note == checksum &&
                                item.expires_at == static_cast<std::int64_t>(items) &&
                                item.value_length == 0;
            if (!is_end) return "it is not what was written (its checksum differs)";
            return file.is_at_end() ? nullptr : "something follows its end";
        }
        const bool is_again = (item.key_length & may_be_again) != 0;
        item.key_length &= ~may_be_again;
        if (item.key_length > longest_key || item.value_length > longest_value) {
            return "it is not what was written (an item is too long)";
        }
        // In two pieces, as they were written.
        if (!file.read(bytes.get(), item.key_length) ||
            !file.read(bytes.get() + item.key_length, item.value_length)) {
            return cut;
        }
        visit({{bytes.get(), item.key_length},
               {bytes.get() + item.key_length, item.value_length},
               item.expires_at,
               item.note,
               is_again});
    }
}

}  // namespace

std::uint64_t write_snapshot(const Store& store, const std::string& path) {
    std::uint64_t items = 0;
    (void)write_aside(path, [&](SnapshotFile& file) {
        SnapshotWriter writer{file};
        store.for_each([&](const Entry& entry) { writer.add(entry, false); });
        items = writer.end();
        return true;
    });
    return items;
}

std::optional<std::uint64_t> write_snapshot_beside(const Store& store, const std::string& path,
                                                   FunctionRef<bool(FunctionRef<void()>)> alone,
                                                   FunctionRef<bool()> goes_on) {
    // Each walk is about as much shorter than the one before it as that was than all; then, what is
    // left is little, or everything changes faster than it can be written.
    constexpr int walks = 3;
    std::optional<std::uint64_t> items;
    const bool is_written = write_aside(path, [&](SnapshotFile& file) {
        SnapshotWriter writer{file};
        std::optional<Version> since;
        Store::Moment begin{};
        for (int i = 0; i < walks; ++i) {
            begin = store.moment();
            if (!write_newer(store, since, writer, goes_on)) return false;
            since = begin.newest;
            if (store.moment().moved == begin.moved) break;
        }
        const bool is_last = alone([&] {
            if (store.moment().moved == begin.moved) return;
            (void)write_newer(store, since, writer, [] { return true; });
        });
        if (!is_last) return false;
        items = writer.end();
        return true;
    });
    return is_written ? items : std::nullopt;
}

SnapshotRead read_snapshot(Store& store, const std::string& path) {
    SnapshotRead read;
    const auto pass = [&](FunctionRef<void(const SnapshotEntry&)> visit) {
        SnapshotFile file{path, reads, O_RDONLY};
        if (!file.is_open() && file.error() == ENOENT) return;
        if (!file.is_open()) file.fail();
        if (const char* const why = each_item(file, visit)) {
            throw base::Error{base::ErrorCode::invalid_argument, reads, path, why,
                              "use another one, or move it away and begin with an empty store"};
        }
    };
    pass([](const SnapshotEntry&) {});
    const std::int64_t offset = unix_offset();
    const auto now = base::Clock::now();
    pass([&](const SnapshotEntry& entry) {
        std::optional<base::Clock::time_point> expires_at;
        if (entry.expires_at != 0) {
            expires_at =
                base::Clock::time_point{std::chrono::nanoseconds{entry.expires_at - offset}};
        }
        const bool is_known = entry.is_again && store.exists(entry.key);
        if (expires_at && *expires_at <= now) {
            if (is_known) {
                (void)store.erase(entry.key);
                --read.items;
            }
            ++read.over;
            return;
        }
        const SetResult set = store.set_until(entry.key, entry.value, expires_at, {}, entry.note);
        if (set.outcome != Outcome::ok) {
            ++read.refused;
            return;
        }
        if (!is_known) ++read.items;
        if (expires_at) ++read.expires;
    });
    return read;
}

}  // namespace millrace::kv
