// MILLRACE_REMAP: plain memory that peers reach directly, and that is plain again afterwards. The
// setting is looked at once per process, so each test is one.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "millrace/base/log_output.hpp"
#include "soft/held_memory.hpp"
#include "soft/remote_endpoint.hpp"
#include "system/descriptor.hpp"
#include "system/mapping.hpp"

namespace millrace::test {
namespace {

/// What /proc/self/maps says of the area that `address` lies in: "rw-p", "rw-s".
std::string permissions_of(const void* address) {
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    std::FILE* const maps = std::fopen("/proc/self/maps", "re");
    std::string answer;
    char line[512];
    while (std::fgets(line, sizeof line, maps) != nullptr) {
        unsigned long begin = 0;
        unsigned long end = 0;
        char permissions[5];
        if (std::sscanf(line, "%lx-%lx %4s", &begin, &end, permissions) == 3 && begin <= wanted &&
            wanted < end) {
            answer = permissions;
        }
    }
    std::fclose(maps);
    return answer;
}

#define REQUIRE(condition)              \
    do {                                \
        if (!(condition)) {             \
            say("failed: " #condition); \
            return 1;                   \
        }                               \
    } while (false)

MILLRACE_CHILD(soft_remapped) {
    setenv("MILLRACE_REMAP", "1", 1);
    EndpointOptions options;
    options.shared_memory = false;
    auto* const whole = static_cast<std::byte*>(
        mmap(nullptr, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    {
        Endpoint end{options};
        REQUIRE(permissions_of(end.memory) == "rw-s");
        // Of an odd place, and of another region's part.
        std::memset(whole, 7, 16384);
        ibv_mr* const odd = soft::reg_mr(end.pd, whole + 8, 4096, 0, options.access);
        REQUIRE(odd != nullptr && permissions_of(whole) == "rw-p");
        REQUIRE(soft::dereg_mr(odd) == 0);
        ibv_mr* const first =
            soft::reg_mr(end.pd, whole + 4096, 8192, reinterpret_cast<std::uint64_t>(whole + 4096),
                         options.access);
        REQUIRE(first != nullptr);
        REQUIRE(permissions_of(whole) == "rw-p" && permissions_of(whole + 4096) == "rw-s");
        REQUIRE(permissions_of(whole + 8192) == "rw-s" && permissions_of(whole + 12288) == "rw-p");
        REQUIRE(whole[4096] == std::byte{7} && whole[12287] == std::byte{7});
        ibv_mr* const second = soft::reg_mr(
            end.pd, whole + 8200, 8, reinterpret_cast<std::uint64_t>(whole + 8200), options.access);
        REQUIRE(second != nullptr);
        REQUIRE(soft::dereg_mr(first) == 0);
        REQUIRE(permissions_of(whole + 8192) == "rw-s");
        say(std::to_string(end.qp->qp_num) + ' ' + std::to_string(second->rkey) + ' ' +
            std::to_string(reinterpret_cast<std::uint64_t>(whole + 8200)));
        REQUIRE(end.connect(static_cast<std::uint32_t>(std::stoul(*hear()))) == 0);
        say("connected");
        REQUIRE(hear() == "written");
        REQUIRE(whole[8200] == std::byte{9} && whole[8208] == std::byte{7});
        whole[4100] = std::byte{1};
        REQUIRE(soft::dereg_mr(second) == 0);
    }
    REQUIRE(permissions_of(whole + 8192) == "rw-p");
    REQUIRE(whole[8200] == std::byte{9} && whole[4100] == std::byte{1});
    REQUIRE(whole[4096] == std::byte{7} && whole[12287] == std::byte{7});
    // And a child has it again.
    const pid_t child = fork();
    if (child == 0) _exit(whole[8200] == std::byte{9} ? 0 : 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    say("good");
    return 0;
}

TEST(Remapping, GivesPeersDirectStoresAndTheProgramItsMemoryBack) {
    auto child = ChildProcess::start("soft_remapped", {});
    std::istringstream line{child.read_line().value_or("")};
    std::uint32_t qpn = 0;
    std::uint32_t rkey = 0;
    std::uint64_t address = 0;
    line >> qpn >> rkey >> address;
    ASSERT_NE(qpn, 0U) << line.str();
    Endpoint end;
    ASSERT_TRUE(child.write_line(std::to_string(end.qp->qp_num)));
    ASSERT_EQ(child.read_line().value_or("gone"), "connected");
    ASSERT_EQ(end.connect(qpn), 0);
    std::memset(end.memory, 9, 8);
    ASSERT_EQ(end.write(1, 0, 8, address, rkey), 0);
    const auto wc = end.complete();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    ASSERT_TRUE(child.write_line("written"));
    EXPECT_EQ(child.read_line().value_or("gone"), "good");
    EXPECT_TRUE(child.wait().success());
}

// Sparse memory stays sparse. A huge page may come where one page was touched.

constexpr std::size_t sparse_bytes = std::size_t{1} << 30;
constexpr std::size_t few_bytes = std::size_t{64} << 20;
constexpr std::size_t hole = std::size_t{300} << 20;
constexpr std::array<std::size_t, 5> touched{0, 511 * 4096, 512 * 4096, std::size_t{700} << 20,
                                             sparse_bytes - 4096};

std::byte* sparse_memory() {
    void* const memory = mmap(nullptr, sparse_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return static_cast<std::byte*>(memory);
}

/// The file of moved memory, as a peer opens it.
soft::Descriptor file_of_moved_memory() {
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
        std::error_code error;
        const auto target = std::filesystem::read_symlink(entry.path(), error).string();
        // The endpoint's own memory has one as well.
        if (target.find("millrace-remapped") == std::string::npos ||
            std::filesystem::file_size(entry.path(), error) != sparse_bytes) {
            continue;
        }
        return soft::Descriptor{open(entry.path().c_str(), O_RDWR | O_CLOEXEC)};
    }
    return {};
}

MILLRACE_CHILD(soft_remapped_sparse) {
    setenv("MILLRACE_REMAP", "1", 1);
    std::byte* const memory = sparse_memory();
    for (const std::size_t at : touched) memory[at] = std::byte{7};
    EndpointOptions options;
    const Endpoint end{options};
    const std::uint64_t before = private_bytes();
    ibv_mr* const region = soft::reg_mr(end.pd, memory, sparse_bytes,
                                        reinterpret_cast<std::uint64_t>(memory), options.access);
    REQUIRE(region != nullptr && permissions_of(memory) == "rw-s");
    {
        const soft::Descriptor file = file_of_moved_memory();
        struct stat status {};
        REQUIRE(file && fstat(file.get(), &status) == 0);
        REQUIRE(static_cast<std::uint64_t>(status.st_blocks) * 512 < few_bytes);
        for (const std::size_t at : touched) REQUIRE(memory[at] == std::byte{7});
        // A peer stores where nobody has been, and so does the program.
        const soft::Mapping peer{file.get(), 0, sparse_bytes, PROT_READ | PROT_WRITE};
        REQUIRE(peer);
        peer.memory()[hole] = std::byte{9};
    }
    memory[hole + 8192] = std::byte{1};
    REQUIRE(soft::dereg_mr(region) == 0);
    REQUIRE(permissions_of(memory) == "rw-p");
    REQUIRE(private_bytes() < before + few_bytes);
    for (const std::size_t at : touched) REQUIRE(memory[at] == std::byte{7});
    REQUIRE(memory[hole] == std::byte{9} && memory[hole + 8192] == std::byte{1});
    REQUIRE(memory[hole + 4096] == std::byte{0});
    say("good");
    return 0;
}

TEST(Remapping, FillsOnlyPagesThatSomebodyHasTouched) {
    auto child = ChildProcess::start("soft_remapped_sparse", {});
    EXPECT_EQ(child.read_line().value_or("gone"), "good");
    EXPECT_TRUE(child.wait().success());
}

MILLRACE_CHILD(soft_remapped_in_vain) {
    setenv("MILLRACE_REMAP", "1", 1);
    signal(SIGXFSZ, SIG_IGN);  // too large a file is an error
    std::byte* const memory = sparse_memory();
    memory[4096] = std::byte{7};
    EndpointOptions options;
    const Endpoint end{options};
    std::string said;
    base::set_log_sink([&said](auto, auto, std::string_view text) { said += text; });
    rlimit usual{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &usual) == 0);
    const rlimit small{few_bytes, usual.rlim_max};
    const auto iova = reinterpret_cast<std::uint64_t>(memory);
    for (int i = 0; i < 2; ++i) {
        REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
        ibv_mr* const plain = soft::reg_mr(end.pd, memory, sparse_bytes, iova, options.access);
        REQUIRE(setrlimit(RLIMIT_FSIZE, &usual) == 0);
        REQUIRE(plain != nullptr && permissions_of(memory) == "rw-p");
        REQUIRE(memory[4096] == std::byte{7});
        REQUIRE(soft::dereg_mr(plain) == 0);
    }
    base::set_log_sink({});
    const std::size_t first = said.find("File too large (EFBIG)");
    REQUIRE(first != std::string::npos);
    REQUIRE(said.find("EFBIG", first + 20) == std::string::npos);
    // Nothing remembers that it was tried.
    ibv_mr* const moved = soft::reg_mr(end.pd, memory, sparse_bytes, iova, options.access);
    REQUIRE(moved != nullptr && permissions_of(memory) == "rw-s");
    REQUIRE(soft::dereg_mr(moved) == 0);
    say("good");
    return 0;
}

TEST(Remapping, SaysOnceWhyMemoryStaysPrivate) {
    auto child = ChildProcess::start("soft_remapped_in_vain", {});
    EXPECT_EQ(child.read_line().value_or("gone"), "good");
    EXPECT_TRUE(child.wait().success());
}

}  // namespace
}  // namespace millrace::test
