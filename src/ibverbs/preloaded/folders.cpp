// The C library's functions that list folders, for the soft device's. A folder of the kernel's
// that the soft device shares shows the kernel's entries first and the device's after them.
//
// A listing of ours is a DIR of our own making, known by its address; all others go to the C
// library. dirent and dirent64 are one structure on 64-bit Linux.
#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "asking.hpp"

static_assert(sizeof(dirent) == sizeof(dirent64));

namespace millrace::preloaded {
namespace {

Real<DIR*(const char*)> real_opendir{"opendir"};
Real<DIR*(int)> real_fdopendir{"fdopendir"};
Real<dirent*(DIR*)> real_readdir{"readdir"};
Real<int(DIR*, dirent*, dirent**)> real_readdir_r{"readdir_r"};
Real<int(DIR*)> real_closedir{"closedir"};
Real<void(DIR*)> real_rewinddir{"rewinddir"};
Real<long(DIR*)> real_telldir{"telldir"};
Real<void(DIR*, long)> real_seekdir{"seekdir"};
Real<int(DIR*)> real_dirfd{"dirfd"};
using Filter = int (*)(const dirent*);
using Order = int (*)(const dirent**, const dirent**);
Real<int(const char*, dirent***, Filter, Order)> real_scandir{"scandir"};

struct Listing {
    Listing* next;
    DIR* kernels;      ///< the folder that is shared, or null
    bool kernels_end;  ///< it has been read to its end
    int descriptor;    ///< what it was opened by, or -1
    std::size_t position;
    dirent entry;
    char path[PATH_MAX];
};

pthread_mutex_t listings_mutex = PTHREAD_MUTEX_INITIALIZER;
Listing* listings = nullptr;             // by listings_mutex
std::atomic<unsigned> listing_count{0};  // so that without any, nobody locks

Listing* listing_of(DIR* folder) noexcept {
    if (listing_count.load(std::memory_order_acquire) == 0) return nullptr;
    pthread_mutex_lock(&listings_mutex);
    Listing* at = listings;
    while (at != nullptr && reinterpret_cast<DIR*>(at) != folder) at = at->next;
    pthread_mutex_unlock(&listings_mutex);
    return at;
}

Listing* open_listing(const char* path, DIR* kernels, int descriptor) noexcept {
    auto* const listing = static_cast<Listing*>(std::calloc(1, sizeof(Listing)));
    if (listing == nullptr) return nullptr;
    std::strcpy(listing->path, path);
    listing->descriptor = descriptor;
    listing->kernels = kernels;
    listing->kernels_end = kernels == nullptr;
    pthread_mutex_lock(&listings_mutex);
    listing->next = listings;
    listings = listing;
    pthread_mutex_unlock(&listings_mutex);
    listing_count.fetch_add(1, std::memory_order_release);
    return listing;
}

void close_listing(Listing* listing) noexcept {
    pthread_mutex_lock(&listings_mutex);
    Listing** at = &listings;
    while (*at != listing) at = &(*at)->next;
    *at = listing->next;
    pthread_mutex_unlock(&listings_mutex);
    listing_count.fetch_sub(1, std::memory_order_release);
    if (listing->kernels != nullptr) real_closedir(listing->kernels);
    if (listing->descriptor >= 0) close(listing->descriptor);
    std::free(listing);
}

unsigned char type_of(FileKind kind) noexcept {
    switch (kind) {
        case FileKind::folder:
        case FileKind::shared_folder: return DT_DIR;
        case FileKind::link: return DT_LNK;
        case FileKind::character_device: return DT_CHR;
        default: return DT_REG;
    }
}

dirent* next_entry(Listing& listing) noexcept {
    if (!listing.kernels_end) {
        if (dirent* const entry = real_readdir(listing.kernels)) return entry;
        listing.kernels_end = true;
    }
    dirent& entry = listing.entry;
    char name[NAME_MAX + 1];
    FileKind kind = FileKind::folder;
    // A folder of ours alone begins with "." and "..".
    const std::size_t dots = listing.kernels == nullptr ? 2 : 0;
    if (listing.position < dots) {
        std::strcpy(name, listing.position == 0 ? "." : "..");
    } else if (!files().entry(listing.path, listing.position - dots, name, &kind)) {
        return nullptr;
    }
    ++listing.position;
    std::memset(&entry, 0, sizeof entry);
    entry.d_ino = listing.position;
    entry.d_off = static_cast<off_t>(listing.position);
    entry.d_reclen = sizeof entry;
    entry.d_type = type_of(kind);
    static_assert(sizeof entry.d_name >= sizeof name);
    std::strcpy(entry.d_name, name);
    return &entry;
}

int next_entry_into(DIR* folder, dirent* entry, dirent** result) noexcept {
    Listing* const listing = listing_of(folder);
    if (listing == nullptr) return real_readdir_r(folder, entry, result);
    const dirent* const next = next_entry(*listing);
    *result = next == nullptr ? nullptr : entry;
    if (next != nullptr) std::memcpy(entry, next, next->d_reclen);
    return 0;
}

DIR* open_folder(const char* path) noexcept {
    Answer answer;
    DIR* kernels = nullptr;
    const FileKind kind = ask(path, true, answer);
    const auto real = [](const char* at) { return real_opendir(at); };
    if (const auto result = kernels_result(kind, path, answer, real)) return *result;
    if (kind == FileKind::file || kind == FileKind::link) {
        errno = ENOTDIR;
        return nullptr;
    }
    if (kind == FileKind::shared_folder) {
        const int error = errno;
        kernels = real_opendir(path);
        errno = error;
    }
    Listing* const listing = open_listing(answer.path, kernels, -1);
    if (listing == nullptr && kernels != nullptr) real_closedir(kernels);
    return reinterpret_cast<DIR*>(listing);
}

DIR* open_by_descriptor(int descriptor) noexcept {
    char path[PATH_MAX];
    if (!is_folder_descriptor(descriptor, path)) return real_fdopendir(descriptor);
    const int error = errno;
    DIR* const kernels = real_opendir(path);  // of a shared folder
    errno = error;
    Listing* const listing = open_listing(path, kernels, descriptor);
    if (listing == nullptr && kernels != nullptr) real_closedir(kernels);
    return reinterpret_cast<DIR*>(listing);
}

int scan_folder(const char* path, dirent*** names, Filter filter, Order order) noexcept {
    Answer answer;
    const FileKind kind = ask(path, true, answer);
    const auto real = [=](const char* at) { return real_scandir(at, names, filter, order); };
    if (const auto result = kernels_result(kind, path, answer, real)) return *result;
    DIR* const folder = open_folder(path);
    if (folder == nullptr) return -1;
    Listing& listing = *reinterpret_cast<Listing*>(folder);
    dirent** found = nullptr;
    int count = 0;
    bool failed = false;
    while (const dirent* const entry = next_entry(listing)) {
        if (filter != nullptr && filter(entry) == 0) continue;
        auto** const more = static_cast<dirent**>(
            std::realloc(found, (static_cast<std::size_t>(count) + 1) * sizeof(dirent*)));
        if (more != nullptr) found = more;
        auto* const copy =
            more == nullptr ? nullptr : static_cast<dirent*>(std::calloc(1, sizeof(dirent)));
        if (copy == nullptr) {
            failed = true;
            break;
        }
        std::memcpy(copy, entry, entry->d_reclen);
        found[count++] = copy;
    }
    close_listing(&listing);
    if (failed) {
        while (count > 0) std::free(found[--count]);
        std::free(found);
        errno = ENOMEM;
        return -1;
    }
    if (order != nullptr && count > 1) {
        std::qsort(found, static_cast<std::size_t>(count), sizeof(dirent*),
                   reinterpret_cast<int (*)(const void*, const void*)>(order));
    }
    *names = found;
    return count;
}

}  // namespace
}  // namespace millrace::preloaded

using namespace millrace::preloaded;

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED DIR* opendir(const char* path) { return open_folder(path); }
EXPORTED DIR* fdopendir(int descriptor) { return open_by_descriptor(descriptor); }
EXPORTED dirent* readdir(DIR* folder) {
    Listing* const listing = listing_of(folder);
    return listing == nullptr ? real_readdir(folder) : next_entry(*listing);
}
EXPORTED dirent64* readdir64(DIR* folder) { return reinterpret_cast<dirent64*>(readdir(folder)); }
EXPORTED int readdir_r(DIR* folder, dirent* entry, dirent** result) {
    return next_entry_into(folder, entry, result);
}
EXPORTED int readdir64_r(DIR* folder, dirent64* entry, dirent64** result) {
    return next_entry_into(folder, reinterpret_cast<dirent*>(entry),
                           reinterpret_cast<dirent**>(result));
}
EXPORTED int closedir(DIR* folder) {
    Listing* const listing = listing_of(folder);
    if (listing == nullptr) return real_closedir(folder);
    close_listing(listing);
    return 0;
}
EXPORTED void rewinddir(DIR* folder) noexcept {
    Listing* const listing = listing_of(folder);
    if (listing == nullptr) {
        real_rewinddir.get()(folder);
        return;
    }
    if (listing->kernels != nullptr) real_rewinddir.get()(listing->kernels);
    listing->kernels_end = listing->kernels == nullptr;
    listing->position = 0;
}
EXPORTED long telldir(DIR* folder) noexcept {
    Listing* const listing = listing_of(folder);
    return listing == nullptr ? real_telldir(folder) : static_cast<long>(listing->position);
}
EXPORTED void seekdir(DIR* folder, long position) noexcept {
    Listing* const listing = listing_of(folder);
    if (listing == nullptr) {
        real_seekdir.get()(folder, position);
    } else if (listing->kernels == nullptr) {
        listing->position = static_cast<std::size_t>(position);
    }
}
EXPORTED int dirfd(DIR* folder) noexcept {
    const Listing* const listing = listing_of(folder);
    if (listing == nullptr) return real_dirfd(folder);
    if (listing->descriptor >= 0) return listing->descriptor;
    if (listing->kernels != nullptr) return real_dirfd(listing->kernels);
    errno = ENOTSUP;
    return -1;
}
EXPORTED int scandir(const char* path, dirent*** names, Filter filter, Order order) {
    return scan_folder(path, names, filter, order);
}
EXPORTED int scandir64(const char* path, dirent64*** names, int (*filter)(const dirent64*),
                       int (*order)(const dirent64**, const dirent64**)) {
    return scan_folder(path, reinterpret_cast<dirent***>(names), reinterpret_cast<Filter>(filter),
                       reinterpret_cast<Order>(order));
}
