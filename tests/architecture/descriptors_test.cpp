// Every descriptor that the library creates goes at once to something that keeps it off the
// program's standard streams: a Descriptor, or base::above_standard_streams. Streams of the C and
// C++ libraries and folders that are read and closed again are left out: nothing is written to
// them. So is the library that answers a program's own open(): that returns the lowest number there
// is.
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::architecture::text_of;
using testing::IsEmpty;
using testing::SizeIs;

/// The calls in `source` that create a descriptor and do not hand it on.
std::vector<std::string> loose_descriptors_in(const std::string& source) {
    static const std::regex comment{"//[^\n]*"};
    const std::string text = std::regex_replace(source, comment, "");
    // Names that members have, too, are meant where they are the system's.
    static const std::regex call{
        R"rx((^|[^\w:.>])(::(?:socket|open|openat|accept)|(?:::)?(?:memfd_create|eventfd|pipe2?|epoll_create1?|timerfd_create|accept4|inotify_init1|signalfd|shm_open|mkostemp|dup[23]?))\s*\(|SYS_pidfd_open)rx"};
    static const std::regex taken{
        R"rx((Descriptor(\s+\w+)?\{|\w_\{|above_standard_streams\()\s*(static_cast<int>\(::syscall\()?$)rx"};
    std::vector<std::string> loose;
    for (std::sregex_iterator match{text.begin(), text.end(), call}, end; match != end; ++match) {
        const auto begin = static_cast<std::size_t>(match->position()) + (*match)[1].length();
        const std::size_t from = begin < 80 ? 0 : begin - 80;
        const std::string before = text.substr(from, begin - from);
        const std::string behind = text.substr(begin, 200);
        const bool both_ends = behind.find("pipe2(") < 3 && behind.find("Descriptor ") < 200;
        if (!std::regex_search(before, taken) && !both_ends) {
            loose.push_back(behind.substr(0, behind.find('\n')));
        }
    }
    return loose;
}

TEST(Descriptors, AreAllKeptOffTheStandardStreams) {
    std::vector<std::string> loose;
    int files = 0;
    for (const char* const folder : {"src", "include"}) {
        for (const auto& entry :
             fs::recursive_directory_iterator{fs::path{MILLRACE_SOURCE_DIR} / folder}) {
            if (!entry.is_regular_file() || entry.path().stem() == "standard_streams" ||
                entry.path().parent_path().filename() == "preloaded") {
                continue;
            }
            ++files;
            for (const std::string& one : loose_descriptors_in(text_of(entry.path()))) {
                loose.push_back(entry.path().filename().string() + ": " + one);
            }
        }
    }
    EXPECT_GE(files, 100);  // the house was found
    EXPECT_THAT(loose, IsEmpty());
}

TEST(DescriptorCheck, ReportsWhatIsKeptAsANumber) {
    EXPECT_THAT(loose_descriptors_in("int a = ::open(path, O_RDONLY);"), SizeIs(1));
    EXPECT_THAT(loose_descriptors_in("fd = memfd_create(\"x\", 0);"), SizeIs(1));
    EXPECT_THAT(loose_descriptors_in("fd = epoll_create1(0); // Descriptor{"), SizeIs(1));
    EXPECT_THAT(loose_descriptors_in("int fd = syscall(SYS_pidfd_open, pid, 0);"), SizeIs(1));
    EXPECT_THAT(loose_descriptors_in("if (pipe2(ends, 0) != 0) return;"), SizeIs(1));
}

TEST(DescriptorCheck, PassesWhatHasAnOwnerAndWhatIsNoCall) {
    EXPECT_THAT(loose_descriptors_in("Descriptor file{::open(path, O_RDONLY)};"), IsEmpty());
    EXPECT_THAT(loose_descriptors_in("a = base::above_standard_streams(\n    eventfd(0, 0));"),
                IsEmpty());
    EXPECT_THAT(loose_descriptors_in(": epoll_{::epoll_create1(0)} {"), IsEmpty());
    EXPECT_THAT(loose_descriptors_in("link.socket(); Endpoint::open(); device.open();"), IsEmpty());
}

}  // namespace
