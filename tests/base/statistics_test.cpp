// Statistics pages: written here, read by other processes, forged pages passed over.
#include "millrace/base/statistics.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "millrace/base/error.hpp"
#include "support/child_process.hpp"

namespace millrace::base {
namespace {

using Counters = std::vector<std::pair<std::string, std::uint64_t>>;

/// The pages of a process (this one if not told) titled `title`.
std::vector<StatisticsPage::Snapshot> pages_titled(std::string_view title, int pid = getpid()) {
    auto pages = StatisticsPage::of_process(pid);
    std::erase_if(pages, [&](const auto& page) { return page.title != title; });
    return pages;
}

TEST(StatisticsPage, StartsWithEveryCounterAtZeroInTheGivenOrder) {
    const StatisticsPage page{"zero", {"second", "first"}};
    EXPECT_EQ(page.read(), (Counters{{"second", 0}, {"first", 0}}));
}

TEST(StatisticsPage, CountsWhatIsAddedAndShowsWhatIsSet) {
    StatisticsPage page{"count", {"added", "set"}};
    Counter added = page.counter(0);
    Counter set = page.counter(1);
    added.add();
    added.add(41);
    set.add(7);
    set.set(5);
    EXPECT_EQ(added.value(), 42U);
    EXPECT_EQ(page.read(), (Counters{{"added", 42}, {"set", 5}}));
}

TEST(StatisticsPage, TakesNamesAndTitlesUpToTheirLimit) {
    const std::string title(47, 't');
    const std::string name(55, 'n');
    const StatisticsPage page{title, {name}};
    EXPECT_EQ(page.read(), (Counters{{name, 0}}));
    EXPECT_EQ(pages_titled(title).size(), 1U);
}

TEST(StatisticsPage, RefusesLongerNamesAndTitles) {
    const std::string title(48, 't');
    const std::string name(56, 'n');
    EXPECT_THROW((StatisticsPage{title, {"a"}}), Error);
    EXPECT_THROW((StatisticsPage{"a", {name}}), Error);
}

TEST(StatisticsPage, MayHaveNoCounters) {
    const StatisticsPage page{"bare", {}};
    EXPECT_TRUE(page.read().empty());
    EXPECT_EQ(pages_titled("bare").size(), 1U);
}

TEST(StatisticsPage, MovesWithItsCounters) {
    StatisticsPage first{"moved", {"a"}};
    Counter counter = first.counter(0);
    StatisticsPage second{std::move(first)};
    counter.add(3);
    EXPECT_EQ(second.read(), (Counters{{"a", 3}}));
    StatisticsPage third{"replaced", {"b"}};
    third = std::move(second);
    EXPECT_EQ(third.read(), (Counters{{"a", 3}}));
    EXPECT_TRUE(pages_titled("replaced").empty());
    EXPECT_EQ(pages_titled("moved").size(), 1U);
}

TEST(StatisticsPage, VanishesWhenItIsDestroyed) {
    { const StatisticsPage page{"short-lived", {"a"}}; }
    EXPECT_TRUE(pages_titled("short-lived").empty());
}

TEST(StatisticsPage, TellsCountersGaugesAndHistogramsApart) {
    const std::vector<Figure> figures{{"items", FigureKind::counter},
                                      {"waiting", FigureKind::gauge},
                                      {"left", FigureKind::counter},
                                      {"latency", FigureKind::histogram},
                                      {"size", FigureKind::histogram}};
    StatisticsPage page{"kinds", figures};
    page.set(std::vector<std::uint64_t>{3, 2, 1});
    page.counter(1).set(5);
    for (std::uint64_t value = 1; value <= 1000; ++value) page.histogram(0).record(value * 1000);
    page.histogram(1).record(64);
    EXPECT_EQ(page.read(), (Counters{{"items", 3}, {"waiting", 5}, {"left", 1}}));
    const auto pages = pages_titled("kinds");
    ASSERT_EQ(pages.size(), 1U);
    EXPECT_EQ(pages[0].counters, (Counters{{"items", 3}, {"left", 1}}));
    EXPECT_EQ(pages[0].gauges, (Counters{{"waiting", 5}}));
    ASSERT_EQ(pages[0].histograms.size(), 2U);
    const auto& latency = pages[0].histograms[0];
    EXPECT_EQ(latency.name, "latency");
    EXPECT_EQ(latency.count, 1000U);
    EXPECT_EQ(latency.least, 1000U);
    EXPECT_EQ(latency.most, 1'000'000U);
    EXPECT_DOUBLE_EQ(latency.mean, 500'500);
    const auto is_about = [](std::uint64_t figure, std::uint64_t exact) {
        EXPECT_GE(figure, exact);
        EXPECT_LE(static_cast<double>(figure),
                  static_cast<double>(exact) * (1 + Histogram::precision));
    };
    is_about(latency.median, 500'000);
    is_about(latency.p90, 900'000);
    is_about(latency.p99, 990'000);
    is_about(latency.p999, 999'000);
    EXPECT_EQ(pages[0].histograms[1].count, 1U);
    EXPECT_EQ(pages[0].histograms[1].most, 64U);
}

TEST(StatisticsPage, HasHistogramsBehindAllOthers) {
    const std::vector<Figure> figures{{"latency", FigureKind::histogram}, {"items"}};
    EXPECT_THROW((StatisticsPage{"order", figures}), Error);
}

TEST(StatisticsPage, BeginsAnewWhereOneWithOtherContentLay) {
    const std::vector<Figure> figures{{"items"}, {"latency", FigureKind::histogram}};
    for (int round = 0; round != 3; ++round) {
        StatisticsPage page{"anew", figures};
        const auto pages = pages_titled("anew");
        ASSERT_EQ(pages.size(), 1U);
        EXPECT_EQ(pages[0].counters, (Counters{{"items", 0}}));
        EXPECT_EQ(pages[0].histograms[0].count, 0U);
        page.counter(0).set(7);
        page.histogram(0).record(7);
    }
}

MILLRACE_CHILD(statistics_out_of_range) {
    dup2(STDOUT_FILENO, STDERR_FILENO);
    StatisticsPage page{"small", {"a"}};
    static_cast<void>(page.counter(1));
    return 0;
}

TEST(StatisticsPage, AbortsWhenAskedForACounterItHasNot) {
    auto child = test::ChildProcess::start("statistics_out_of_range");
    EXPECT_NE(child.read_all().find("counter it has not"), std::string::npos);
    EXPECT_TRUE(child.wait().killed_by(SIGABRT));
}

MILLRACE_CHILD(statistics_writer) {
    StatisticsPage page{"child page", {"lines"}};
    test::say("ready");
    while (test::hear()) {
        page.counter(0).add();
        test::say("counted");
    }
    return 0;
}

TEST(StatisticsPage, IsReadByAnotherProcessWhileItsOwnerRuns) {
    auto child = test::ChildProcess::start("statistics_writer");
    ASSERT_EQ(child.read_line(), "ready");
    for (std::uint64_t expected = 0; expected < 3; ++expected) {
        const auto pages = pages_titled("child page", child.pid());
        ASSERT_EQ(pages.size(), 1U);
        EXPECT_EQ(pages[0].pid, child.pid());
        EXPECT_EQ(pages[0].counters, (Counters{{"lines", expected}}));
        child.write_line("next");
        ASSERT_EQ(child.read_line(), "counted");
    }
}

TEST(StatisticsPage, IsReadOfAStoppedProcessAndGoneAfterItIsKilled) {
    auto child = test::ChildProcess::start("statistics_writer");
    ASSERT_EQ(child.read_line(), "ready");
    ASSERT_TRUE(child.stop());
    EXPECT_EQ(pages_titled("child page", child.pid()).size(), 1U);
    const int pid = child.pid();
    EXPECT_TRUE(child.kill_and_wait().killed_by(SIGKILL));
    EXPECT_TRUE(StatisticsPage::of_process(pid).empty());
}

/// Open files of statistics pages of this process.
int files_of_pages() {
    int count = 0;
    for (int descriptor = 0; descriptor < 1024; ++descriptor) {
        char target[256];
        const auto path = "/proc/self/fd/" + std::to_string(descriptor);
        const ssize_t length = readlink(path.c_str(), target, sizeof(target));
        if (length > 0 && std::string_view{target, static_cast<std::size_t>(length)}.starts_with(
                              "/memfd:millrace-stats:pages")) {
            ++count;
        }
    }
    return count;
}

TEST(StatisticsPage, SharesAFileWithManyOthersAndReusesTheirPlaces) {
    EXPECT_EQ(files_of_pages(), 0);
    std::minstd_rand random{1};
    std::vector<std::pair<int, StatisticsPage>> pages;
    int made = 0;
    for (int round = 0; round < 2000; ++round) {
        if (pages.size() < 60 && random() % 3 != 0) {
            const int number = made++;
            const std::string title = "page " + std::to_string(number);
            if (number % 2 == 0) {
                pages.emplace_back(number, StatisticsPage{title, {"number"}});
            } else {
                pages.emplace_back(number, StatisticsPage{title, {"number", "b", "c", "d", "e"}});
            }
            pages.back().second.counter(0).set(static_cast<std::uint64_t>(number));
        } else if (!pages.empty()) {
            pages.erase(pages.begin() + static_cast<std::ptrdiff_t>(random() % pages.size()));
        }
        if (round % 100 != 0) continue;
        const auto seen = StatisticsPage::of_process(getpid());
        EXPECT_EQ(seen.size(), pages.size());
        for (const auto& [number, page] : pages) {
            const auto found = pages_titled("page " + std::to_string(number));
            ASSERT_EQ(found.size(), 1U) << number;
            ASSERT_EQ(found[0].counters.size(), number % 2 == 0 ? 1U : 5U);
            EXPECT_EQ(found[0].counters[0].second, static_cast<std::uint64_t>(number));
        }
    }
    EXPECT_EQ(files_of_pages(), 1) << "they fit into one";
    pages.clear();
    EXPECT_EQ(files_of_pages(), 0);
}

TEST(StatisticsPage, TakesAnotherFileWhenOneIsFull) {
    std::vector<StatisticsPage> pages;
    for (int i = 0; i < 1200; ++i)
        pages.emplace_back("small", std::initializer_list<std::string_view>{"a"});
    EXPECT_EQ(files_of_pages(), 2);
    EXPECT_EQ(pages_titled("small").size(), 1200U);
    pages.erase(pages.begin() + 1, pages.end());
    EXPECT_EQ(files_of_pages(), 1);
}

// A connection has a dozen counters: with a name of 64 bytes for each, 2,000 would fill a megabyte.
TEST(StatisticsPage, HasItsNamesInCommonWithOthersOfItsKind) {
    std::vector<StatisticsPage> pages;
    for (std::uint64_t i = 0; i != 250; ++i) {
        pages.emplace_back("one of a kind",
                           std::initializer_list<std::string_view>{"a", "b", "c", "d", "e", "f",
                                                                   "g", "h", "i", "j", "k", "l"});
        pages.back().counter(11).set(i);
    }
    EXPECT_EQ(files_of_pages(), 1) << "three lines of 1,024 each";
    // The names stay where others use them.
    pages.erase(pages.begin(), pages.begin() + 249);
    const auto left = pages_titled("one of a kind");
    ASSERT_EQ(left.size(), 1U);
    EXPECT_EQ(left[0].counters[11], (std::pair<std::string, std::uint64_t>{"l", 249}));
}

TEST(StatisticsPage, TakesAHandfulOfFilesForThousandsOfOthers) {
    std::vector<StatisticsPage> pages;
    for (int i = 0; i < 20'000; ++i)
        pages.emplace_back("one of many", std::initializer_list<std::string_view>{"a"});
    EXPECT_LE(files_of_pages(), 5);
    // In any order: each gap is found again.
    std::minstd_rand random{2};
    std::shuffle(pages.begin(), pages.end(), random);
    pages.erase(pages.begin() + 10'000, pages.end());
    const int files = files_of_pages();
    for (int i = 0; i < 10'000; ++i)
        pages.emplace_back("one of many", std::initializer_list<std::string_view>{"a"});
    EXPECT_EQ(files_of_pages(), files);
    EXPECT_EQ(pages_titled("one of many").size(), 20'000U);
}

TEST(StatisticsPage, OfAChildAreItsOwn) {
    StatisticsPage page{"of the parent", {"a"}};
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        {
            StatisticsPage own{"of the child", {"a"}};
            const StatisticsPage inherited{std::move(page)};
            const bool good = pages_titled("of the child", getpid()).size() == 1;
            (void)!write(ends[1], good ? "+" : "-", 1);
        }
        _exit(0);
    }
    char answer = 0;
    EXPECT_EQ(read(ends[0], &answer, 1), 1);
    EXPECT_EQ(answer, '+');
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(pages_titled("of the parent").size(), 1U);
    EXPECT_TRUE(pages_titled("of the child").empty());
    close(ends[0]);
    close(ends[1]);
}

TEST(StatisticsPage, OfAProcessThatDoesNotExistIsNone) {
    EXPECT_TRUE(StatisticsPage::of_process(-1).empty());
    EXPECT_TRUE(StatisticsPage::of_process(0x7fff'ffff).empty());
}

/// A memfd with the name of a page and the bytes of `content`. Closes itself.
class Forgery {
  public:
    Forgery(const std::vector<unsigned char>& content, int seals)
        : file_{memfd_create("millrace-stats:pages (forged)", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
        EXPECT_EQ(write(file_, content.data(), content.size()),
                  static_cast<ssize_t>(content.size()));
        if (seals != 0) {
            EXPECT_EQ(fcntl(file_, F_ADD_SEALS, seals), 0);
        }
    }
    Forgery(const Forgery&) = delete;
    Forgery& operator=(const Forgery&) = delete;
    ~Forgery() { close(file_); }

  private:
    int file_;
};

constexpr int all_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// The bytes of a good file of one page with one counter, read through the file of a real one: its
/// header, the names (64 to 191) and the page (192 to 319).
std::vector<unsigned char> good_file() {
    const StatisticsPage page{"forged", {"a"}};
    std::vector<unsigned char> bytes(320);
    for (int descriptor = 0; descriptor < 1024; ++descriptor) {
        char target[256];
        const auto path = "/proc/self/fd/" + std::to_string(descriptor);
        const ssize_t length = readlink(path.c_str(), target, sizeof(target));
        if (length <= 0) continue;
        if (!std::string_view{target, static_cast<std::size_t>(length)}.starts_with(
                "/memfd:millrace-stats:pages")) {
            continue;
        }
        EXPECT_EQ(pread(descriptor, bytes.data(), bytes.size(), 0), 320);
        bytes[12] = 5;  // lines
        bytes[13] = 0;
        return bytes;
    }
    ADD_FAILURE() << "the page has no file";
    return bytes;
}

TEST(StatisticsPage, IsAcceptedWhenItsBytesAreThoseOfAPage) {
    const Forgery copy{good_file(), all_seals};
    EXPECT_EQ(pages_titled("forged").size(), 1U);
}

TEST(StatisticsPage, IsPassedOverWhenItsFileMayShrink) {
    const Forgery forgery{good_file(), 0};
    EXPECT_TRUE(pages_titled("forged").empty());
}

TEST(StatisticsPage, IsPassedOverWhenMagicVersionOrCountAreNotOurs) {
    // Of the file, of the names, of the page; the last: where its names are.
    for (const std::size_t offset : {0U, 8U, 12U, 64U, 72U, 76U, 192U, 200U, 204U, 256U}) {
        auto bytes = good_file();
        bytes[offset] = static_cast<unsigned char>(bytes[offset] + 1);
        const Forgery forgery{bytes, all_seals};
        EXPECT_TRUE(pages_titled("forged").empty()) << "byte " << offset;
    }
}

TEST(StatisticsPage, IsPassedOverWhenItIsTruncatedOrTooLong) {
    for (const std::size_t size : {0U, 1U, 63U, 64U, 128U, 319U, 321U, 384U}) {
        auto bytes = good_file();
        bytes.resize(size);
        const Forgery forgery{bytes, all_seals};
        EXPECT_TRUE(pages_titled("forged").empty()) << size << " bytes";
    }
}

TEST(StatisticsPage, IsReadInBoundsWhenNamesHaveNoEnd) {
    auto bytes = good_file();
    std::fill(bytes.begin() + 208, bytes.begin() + 256, 'T');
    std::fill(bytes.begin() + 128, bytes.begin() + 184, 'N');
    const Forgery forgery{bytes, all_seals};
    const auto pages = pages_titled(std::string(48, 'T'));
    ASSERT_EQ(pages.size(), 1U);
    EXPECT_EQ(pages[0].counters[0].first, std::string(56, 'N'));
}

TEST(StatisticsPage, IsPassedOverWhenAValueIsOfAKindWithoutRoomOrOfNone) {
    // A histogram is longer than the page.
    for (const unsigned kind : {2U, 3U, 255U}) {
        auto bytes = good_file();
        bytes[184] = static_cast<unsigned char>(kind);
        const Forgery forgery{bytes, all_seals};
        EXPECT_TRUE(pages_titled("forged").empty()) << "kind " << kind;
    }
}

}  // namespace
}  // namespace millrace::base
