// A process that claims to be a node of our fabric: it holds a node's socket, files of a node's
// names and a lifeline. An input is what these are (the files, their seals, their sizes) and what
// lies in them (header, directory, region table, groups, blocks), before and while we use it.
//
// Required: it is refused or used, every call returns, and no sanitizer has anything to say. What
// it says on the socket and the lifeline is never read, which is checked too.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/fabric_names.hpp"
#include "fabric/node.hpp"
#include "fuzz/input.hpp"
#include "fuzz/target.hpp"
#include "layout/layout.hpp"
#include "layout/news_page.hpp"
#include "millrace/base/error.hpp"
#include "system/process_identity.hpp"

namespace millrace::fuzz {
namespace {

using namespace soft;

constexpr std::uint32_t number = 200;  ///< of the node that it claims to be
constexpr std::size_t usual_size = blocks_offset + 64 * page_size;

std::shared_ptr<Node> node;
std::string fabric;

class Impostor {
  public:
    explicit Impostor(Input& input) : input_{input} {
        socket_ = Descriptor{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
        const NodeAddress address{::geteuid(), fabric, number};
        require(::bind(socket_.get(), address.get(), address.length) == 0 &&
                    ::listen(socket_.get(), 4) == 0,
                "a node's name can be taken");
        const std::uint32_t kind = input_.below(16);
        tables_.make(tables_name(fabric, number), tables_size,
                     kind == 1   ? tables_size - 1
                     : kind == 2 ? page_size
                                 : tables_size,
                     kind != 4);
        blocks_.make(blocks_name(fabric, number), usual_size,
                     kind == 3   ? usual_size - 1
                     : kind == 5 ? blocks_offset
                                 : usual_size,
                     kind != 6);
        int ends[2];
        require(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "a pipe");
        lifeline_ = Descriptor{ends[1]};
        ::close(ends[0]);
        if (tables_.limit < sizeof(NodeHeader)) return;
        NodeHeader& header = *reinterpret_cast<NodeHeader*>(tables_.memory);
        header.magic = node_magic;
        header.version = layout_version;
        header.node_number = number;
        header.pid = ::getpid();
        header.pid_namespace = own_pid_namespace();
        header.membarrier = input_.below(2);
        struct stat status {};
        const File& blocks = kind == 7 ? tables_ : blocks_;
        require(::fstat(blocks.descriptor.get(), &status) == 0, "a file");
        header.blocks_descriptor = blocks.descriptor.get();
        header.blocks_device = status.st_dev;
        header.blocks_inode = status.st_ino;
        const Descriptor& lifeline = kind == 8 ? socket_ : lifeline_;
        require(::fstat(lifeline.get(), &status) == 0, "a lifeline");
        header.lifeline_descriptor = kind == 9 ? -1 : lifeline.get();
        header.lifeline_inode = status.st_ino;
    }
    Impostor(const Impostor&) = delete;
    Impostor& operator=(const Impostor&) = delete;

    void lie() {
        static constexpr std::size_t areas[] = {0, directory_offset, region_table_offset,
                                                group_table_offset, blocks_offset};
        const std::uint32_t area = input_.below(5);
        const std::size_t at = areas[area] + input_.below(64) * 8UL;
        const File& file = area == 4 ? blocks_ : tables_;
        if (at + 8 > file.limit) return;
        std::uint64_t now = 0;
        switch (input_.below(6)) {
            case 0: now = input_.take<std::uint64_t>(); break;
            case 1: now = input_.take<std::uint16_t>() * page_size; break;
            case 2: now = blocks_offset + input_.below(64) * page_size; break;
            case 3: now = std::uint64_t{input_.take<std::uint8_t>()} << 32 | input_.below(4); break;
            case 4: now = make_key_word(make_key(input_.below(8), 1), 1); break;
            default: now = input_.take<std::uint8_t>(); break;
        }
        std::memcpy(file.memory + at, &now, sizeof now);
    }
    /// Says something on the lifeline and on every connection that it has got.
    void talk() {
        Descriptor connection{
            ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (connection) said_to_.push_back(std::move(connection));
        const auto words = input_.bytes(16);
        if (!words.empty()) {
            static_cast<void>(::write(lifeline_.get(), words.data(), words.size()));
        }
        for (const Descriptor& one : said_to_) {
            static_cast<void>(
                ::send(one.get(), words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
        }
    }

  private:
    struct File {
        Descriptor descriptor;
        std::byte* memory = nullptr;  ///< of `mapped` bytes
        std::size_t mapped = 0;
        std::size_t limit = 0;  ///< the file's size

        File() = default;
        ~File() { ::munmap(memory, mapped); }
        File(const File&) = delete;
        File& operator=(const File&) = delete;
        void make(const std::string& name, std::size_t usual, std::size_t size, bool sealed) {
            descriptor = Descriptor{::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)};
            const int file = descriptor.get();
            require(::ftruncate(file, static_cast<off_t>(usual)) == 0, "a file");
            void* const mapping =
                ::mmap(nullptr, usual, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            require(mapping != MAP_FAILED, "memory");
            memory = static_cast<std::byte*>(mapping);
            mapped = usual;
            require(::ftruncate(file, static_cast<off_t>(size)) == 0, "a file's size");
            if (sealed) ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
            limit = size;
        }
    };

    Input& input_;
    Descriptor socket_;
    File tables_;
    File blocks_;
    Descriptor lifeline_;
    std::vector<Descriptor> said_to_;
};

void use(PeerNode& peer, Input& input) {
    switch (input.below(8)) {
        case 0:
        case 1: {
            const auto block = peer.map_block(input.below(64), input.below(4));
            if (!block) break;
            // All of it is there.
            for (std::size_t at = 0; at < block->size; at += page_size) {
                static_cast<void>(
                    std::atomic_ref{block->memory[at]}.load(std::memory_order_relaxed));
            }
            peer.unmap_block(*block);
            break;
        }
        case 2:
        case 3: {
            const std::uint32_t key = make_key(input.below(8), 1);
            const bool writable = input.below(2) == 0;
            if (const auto facts = read_region(*peer.region(key), key)) {
                static_cast<void>(peer.reach(*facts, key, writable));
            }
            break;
        }
        case 4: {
            std::array<std::uint8_t, 16> group{};
            std::vector<std::uint32_t> found;
            peer.members(group, found);
            for (const std::uint32_t qpn : found) {
                require(node_of_qpn(qpn) == number, "a member is the peer's own");
            }
            break;
        }
        case 5:
            if (const auto page = peer.news_page(input.below(64), input.below(4))) {
                page->tell(input.take<std::uint16_t>());
            }
            break;
        case 6: static_cast<void>(peer.bell(static_cast<int>(input.below(64)))); break;
        default:
            peer.announce_membership();
            std::vector<std::shared_ptr<void>> retired;
            peer.retire_stale(retired);
            static_cast<void>(peer.same_process());
            break;
    }
}

}  // namespace
}  // namespace millrace::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    using namespace millrace;
    if (std::getenv("MILLRACE_LOG") == nullptr) ::setenv("MILLRACE_LOG", "off", 1);
    ::signal(SIGPIPE, SIG_IGN);  // lifelines are written to here
    fuzz::fabric = "fuzz-" + std::to_string(::getpid());
    fuzz::node = soft::Node::join(fuzz::fabric);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace millrace;
    fuzz::Input input{data, size};
    fuzz::Impostor impostor{input};
    for (std::uint32_t i = input.below(8); i > 0; --i) impostor.lie();
    const auto peer = fuzz::node->peer(fuzz::number);
    for (int i = 0; i < 60 && !input.empty(); ++i) {
        const std::uint32_t what = input.below(8);
        if (what < 3) {
            impostor.lie();
        } else if (what == 3) {
            impostor.talk();
            const bool lost = fuzz::node->check_liveness();
            fuzz::require(!lost, "talk is no death");
        } else if (peer != nullptr) {
            fuzz::use(*peer, input);
        }
    }
    return 0;
}
