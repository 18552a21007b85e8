// Files in memory (memfd) that buffers are pieces of: one file for one large buffer, or a slab, of
// which many small ones are taken, so that an idle connection does not cost a descriptor for each
// of its rings. Called by Buffer and ProtectionDomain. docs/decisions/0015-slabs.md
//
//   offset  0                                     next_            size
//           |  never used yet, no pages            | piece | given back | piece |
//
// Pieces are whole pages, or packed: of lines, several in a page, where what an end needs is small.
// Packed ones lie together, in pages that are taken for them as they are needed.
//
// No place in a file is used twice. A peer that stores by itself cannot be fenced off: what it
// writes to a piece that was given back lands in a page that nobody reads, and never in another
// piece. Such pages go with the next piece that is given back beside them, and with the file.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace millrace::verbs {

/// Thread-safe. It lives as long as anybody has a piece of it.
class MemoryFile : public std::enable_shared_from_this<MemoryFile> {
  public:
    struct Piece {
        std::byte* data = nullptr;
        std::size_t size = 0;      ///< whole pages, or lines
        std::uint64_t offset = 0;  ///< in the file
    };

    /// A file for one piece of at least `size` bytes, of huge pages where asked for. None, with
    /// errno.
    [[nodiscard]] static std::shared_ptr<MemoryFile> for_one(std::size_t size,
                                                             bool huge_pages) noexcept;
    /// One for many. None, with errno, also where the limit on the size of files is less than it.
    [[nodiscard]] static std::shared_ptr<MemoryFile> slab() noexcept;
    static constexpr std::size_t largest_of_slab = std::size_t{64} << 20;

    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    ~MemoryFile();

    enum class Unit : std::uint8_t {
        pages,
        lines,  ///< of 128 bytes: two cache lines, which processors fetch together
    };
    static constexpr std::size_t line_bytes = 128;
    /// Memory that is there, zeroed and mapped. 0, or an errno: ENOSPC, no such piece is left, and
    /// a new file is needed.
    [[nodiscard]] int take(std::size_t size, Piece& piece, Unit unit = Unit::pages) noexcept;
    /// Nobody but peers that break their word touches it any more: unmaps it, and gives its pages
    /// back to the system, if this is the process that took it. Behind a successful deregistration.
    void give_back(const Piece& piece) noexcept;
    /// Somebody may touch a piece for ever: then the file is never closed.
    void keep() noexcept;

  private:
    MemoryFile() noexcept = default;
    [[nodiscard]] static std::shared_ptr<MemoryFile> create(std::uint64_t size, std::size_t page,
                                                            unsigned flags) noexcept;
    [[nodiscard]] bool is_ours() const noexcept;
    /// Where a piece of so many bytes begins; nullopt: there is no place. With the mutex.
    [[nodiscard]] std::optional<std::uint64_t> place(std::size_t size, Unit unit) noexcept;
    [[nodiscard]] std::size_t before(const Piece& piece) const noexcept {
        return static_cast<std::size_t>(piece.offset % page_);  ///< of its first page
    }
    void punch(const Piece& piece) noexcept;

    int descriptor_ = -1;
    std::uint64_t device_ = 0;  ///< which file it is
    std::uint64_t inode_ = 0;
    std::uint64_t size_ = 0;
    std::size_t page_ = 0;
    pid_t process_ = 0;  ///< a child made by fork has the file, too, and must leave it alone
    bool for_many_ = false;

    std::mutex mutex_;        ///< of what follows
    std::uint64_t next_ = 0;  ///< the next piece ends there: neighbours are mapped as neighbours
    std::uint64_t packed_begin_ = 0;  ///< of the pages that packed pieces are taken of,
    std::uint64_t packed_next_ = 0;   ///< and where the next one ends
    std::map<std::uint64_t, std::uint64_t> given_back_;  ///< ends by begin, neighbours joined
    std::shared_ptr<MemoryFile> kept_;                   ///< itself
    MemoryFile* next_kept_ = nullptr;
};

/// The slabs of one protection domain: a file is never shared by two, so that who is handed a
/// region of one domain's is handed no file with another's.
class Slabs {
  public:
    /// `piece` of the slab that is in use, or of a new one. None, with errno, where it is for a
    /// file of its own: too large, in a child made by fork, or no slab is to be had.
    [[nodiscard]] std::shared_ptr<MemoryFile> take(
        std::size_t size, MemoryFile::Piece& piece,
        MemoryFile::Unit unit = MemoryFile::Unit::pages) noexcept;

  private:
    const pid_t process_ = own_process();
    [[nodiscard]] static pid_t own_process() noexcept;
    std::mutex mutex_;
    std::weak_ptr<MemoryFile> in_use_;  ///< a slab goes with its last piece
};

}  // namespace millrace::verbs
