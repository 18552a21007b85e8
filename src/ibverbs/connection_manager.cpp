// See connection_manager.hpp.
#include "connection_manager.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "../cm/manager.hpp"
#include "millrace/base/detail/uncancelled.hpp"
#include "millrace/base/log.hpp"
#include "millrace/cm/choice.hpp"

namespace millrace::ibverbs {
namespace {

#if defined(__x86_64__)
constexpr unsigned jump_slot = R_X86_64_JUMP_SLOT;
constexpr unsigned data_slot = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned jump_slot = R_AARCH64_JUMP_SLOT;
constexpr unsigned data_slot = R_AARCH64_GLOB_DAT;
#else
#error "Millrace runs on x86-64 and AArch64"
#endif

/// The engine's thread runs in this library, which must stay from then on.
void stay_loaded() noexcept {
    Dl_info self{};
    if (dladdr(reinterpret_cast<void*>(&stay_loaded), &self) != 0) {
        static_cast<void>(dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE));
    }
}

// --- what librdmacm calls -----------------------------------------------------------------------

int open_or_channel(const char* path, int flags, ...) {
    if (path != nullptr && std::strcmp(path, cm::kernel_file) == 0) {
        stay_loaded();
        return cm::Manager::own().open_channel();
    }
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list more;
        va_start(more, flags);
        mode = static_cast<mode_t>(va_arg(more, unsigned));
        va_end(more);
    }
    return open(path, flags, mode);
}

/// It looks for a character device: the kernel's number, where the kernel has one.
int describe_as_device(struct stat& status) noexcept {
    struct stat kernels {};
    status.st_mode = S_IFCHR | 0666;
    status.st_rdev = stat(cm::kernel_file, &kernels) == 0 ? kernels.st_rdev : 0;
    return 0;
}

int fstat_or_channel(int descriptor, struct stat* status) {
    const int result = fstat(descriptor, status);
    if (result != 0 || !cm::Manager::own().has_channel(descriptor)) return result;
    return describe_as_device(*status);
}

/// What programs built for a C library before 2.33 call.
int old_fstat_or_channel(int, int descriptor, struct stat* status) {
    return fstat_or_channel(descriptor, status);
}

ssize_t write_or_command(int descriptor, const void* bytes, std::size_t length) {
    cm::Manager& manager = cm::Manager::own();
    if (!manager.has_channel(descriptor)) return ::write(descriptor, bytes, length);
    return manager.write_command(descriptor, bytes, length);
}

int close_channel_or_other(int descriptor) {
    cm::Manager::own().close_channel(descriptor);
    return ::close(descriptor);
}

struct Bound {
    std::string_view name;
    void* function;
};
const Bound bound_functions[] = {
    {"open", reinterpret_cast<void*>(&open_or_channel)},
    {"open64", reinterpret_cast<void*>(&open_or_channel)},
    {"fstat", reinterpret_cast<void*>(&fstat_or_channel)},
    {"fstat64", reinterpret_cast<void*>(&fstat_or_channel)},
    {"__fxstat", reinterpret_cast<void*>(&old_fstat_or_channel)},
    {"__fxstat64", reinterpret_cast<void*>(&old_fstat_or_channel)},
    {"write", reinterpret_cast<void*>(&write_or_command)},
    {"close", reinterpret_cast<void*>(&close_channel_or_other)},
};

// --- its slots ----------------------------------------------------------------------------------

/// What the loader made read-only once it had bound everything.
struct ReadOnly {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
};

[[nodiscard]] std::uintptr_t page_of(std::uintptr_t address) noexcept {
    return address & ~(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
}

/// The slot is one word: who calls through it meanwhile finds the old function or the new one.
[[nodiscard]] bool bind_slot(std::uintptr_t slot, void* function, const ReadOnly& kept) noexcept {
    auto& word = *reinterpret_cast<std::atomic<void*>*>(slot);
    if (word.load(std::memory_order_relaxed) == function) return true;
    const bool sealed = slot >= kept.begin && slot < kept.end;
    void* const page = reinterpret_cast<void*>(page_of(slot));
    const auto size = static_cast<std::size_t>(slot - page_of(slot)) + sizeof word;
    if (sealed && mprotect(page, size, PROT_READ | PROT_WRITE) != 0) return false;
    word.store(function, std::memory_order_relaxed);
    if (sealed) mprotect(page, size, PROT_READ);
    return true;
}

struct Dynamic {
    const ElfW(Sym) * symbols = nullptr;
    const char* names = nullptr;
    std::uintptr_t versions = 0;
    std::size_t version_count = 0;
    std::uintptr_t tables[2] = {};  ///< of calls, of data
    std::size_t sizes[2] = {};
};

/// glibc's loader has added the library's address to what these entries say; musl's has not.
[[nodiscard]] std::uintptr_t address_in(const dl_phdr_info& library, ElfW(Addr) said) noexcept {
    return said < library.dlpi_addr ? library.dlpi_addr + said : said;
}

[[nodiscard]] Dynamic dynamic_of(const dl_phdr_info& library, const ElfW(Dyn) * entry) noexcept {
    Dynamic found;
    for (; entry->d_tag != DT_NULL; ++entry) {
        const std::uintptr_t address = address_in(library, entry->d_un.d_ptr);
        switch (entry->d_tag) {
            case DT_SYMTAB: found.symbols = reinterpret_cast<const ElfW(Sym)*>(address); break;
            case DT_STRTAB: found.names = reinterpret_cast<const char*>(address); break;
            case DT_VERDEF: found.versions = address; break;
            case DT_VERDEFNUM: found.version_count = entry->d_un.d_val; break;
            case DT_JMPREL: found.tables[0] = address; break;
            case DT_PLTRELSZ: found.sizes[0] = entry->d_un.d_val; break;
            case DT_RELA: found.tables[1] = address; break;
            case DT_RELASZ: found.sizes[1] = entry->d_un.d_val; break;
            default: break;
        }
    }
    return found;
}

/// Packages that bring their own give it another name, and the symbols are the program's own
/// choice; the versions of its functions are librdmacm's alone.
[[nodiscard]] bool is_librdmacm(const Dynamic& dynamic) noexcept {
    std::uintptr_t at = dynamic.versions;
    for (std::size_t i = 0; i < dynamic.version_count; ++i) {
        const auto& version = *reinterpret_cast<const ElfW(Verdef)*>(at);
        const auto& name = *reinterpret_cast<const ElfW(Verdaux)*>(at + version.vd_aux);
        if (std::string_view{dynamic.names + name.vda_name} == "RDMACM_1.0") return true;
        at += version.vd_next;
    }
    return false;
}

[[nodiscard]] bool bind_slots(const dl_phdr_info& library, const Dynamic& dynamic,
                              const ReadOnly& kept) noexcept {
    bool bound = true;
    for (int table = 0; table < 2; ++table) {
        const auto* const entries = reinterpret_cast<const ElfW(Rela)*>(dynamic.tables[table]);
        for (std::size_t i = 0; i < dynamic.sizes[table] / sizeof *entries; ++i) {
            const auto type = static_cast<unsigned>(ELF64_R_TYPE(entries[i].r_info));
            if (type != jump_slot && type != data_slot) continue;
            const auto& symbol = dynamic.symbols[ELF64_R_SYM(entries[i].r_info)];
            const std::string_view name = dynamic.names + symbol.st_name;
            for (const Bound& one : bound_functions) {
                if (name != one.name) continue;
                bound &= bind_slot(library.dlpi_addr + entries[i].r_offset, one.function, kept);
            }
        }
    }
    return bound;
}

int bind_if_librdmacm(dl_phdr_info* library, std::size_t, void*) noexcept {
    ReadOnly kept;
    const ElfW(Dyn)* dynamic = nullptr;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        const auto& part = library->dlpi_phdr[i];
        const std::uintptr_t begin = library->dlpi_addr + part.p_vaddr;
        if (part.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
        if (part.p_type == PT_GNU_RELRO) kept = {page_of(begin), page_of(begin + part.p_memsz)};
    }
    if (dynamic == nullptr) return 0;
    const Dynamic found = dynamic_of(*library, dynamic);
    if (is_librdmacm(found) && !bind_slots(*library, found, kept)) {
        base::log(base::LogLevel::warn, "cm",
                  "bind {} to the soft device's connection manager: the system refuses to make its "
                  "table of functions writable ({}): rdma_cm is not there for this program",
                  library->dlpi_name, std::strerror(errno));
    }
    return 0;
}

}  // namespace

void bind_connection_manager() noexcept {
    if (cm::chosen_server() != cm::Server::soft) return;
    const base::Uncancelled held;
    dl_iterate_phdr(&bind_if_librdmacm, nullptr);
}

}  // namespace millrace::ibverbs
