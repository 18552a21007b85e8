// What threads share in src/soft. A class that has a lock or an atomic is used by several threads.
// It shows no datum that one of them could change beside another: what is not private is constant,
// atomic, a lock, behind one (Guarded), or of a class that keeps this rule itself. What is given to
// an object while it is made, before another thread knows it, is listed here with the file that
// gives it, and no other file assigns it. What two processes share (the room `layout`) goes by
// protocols, not by locks.
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::architecture::Files;
using millrace::architecture::files_of_soft;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// What is given to objects of a class while they are made.
struct Facts {
    std::string of;
    std::string header;
    std::set<std::string> members;
    std::set<std::string> makers;       ///< files; they alone assign what has such a name, but for
    std::set<std::string> others = {};  ///< files that include the header, and assign another's
};
const std::vector<Facts> all_facts{
    {"QueuePair",
     "queue_pair/queue_pair.hpp",
     {"always", "block", "cable", "created", "datagram", "end", "geometry", "inline_bytes",
      "memory", "on_cable", "own_pool", "owner", "pool", "send_sges", "work_requests"},
     {"objects/create_queue_pair.cpp", "objects/create_extended_queue_pair.cpp"},
     // An End's block and pool, a context's cable.
     {"queue_pair/queue_pair_connection.cpp", "objects/device.cpp"}},
    {"ReceiveQueue",
     "queue_pair/receive_queue.hpp",
     {"capacity", "mask", "sges"},
     {"objects/create_queue_pair.cpp"},
     {"queue_pair/receive_queue.hpp"}},  // an entry's
    {"CompletionSource",
     "completion/completion_source.hpp",
     {"block", "cable", "collects_from", "mask", "qp", "ring", "send"},
     {"objects/create_queue_pair.cpp"}},
    {"CompletionQueue",
     "completion/completion_queue.hpp",
     {"overrun_ignored", "owner", "soft_channel", "stamps"},
     {"objects/create_completion_queue.cpp", "objects/create_extended_completion_queue.cpp"}},
    {"PolledQueue",
     "objects/polling.hpp",
     {"extended_poll", "place", "yield_after"},
     {"objects/create_completion_queue.cpp", "objects/create_extended_completion_queue.cpp"}},
    {"CompletionChannel",
     "completion/completion_channel.hpp",
     {"bell", "hears_of_peers", "owner"},
     {"objects/wait_for_events.cpp"},
     {"objects/create_completion_queue.cpp"}},  // a queue's owner
    {"ReceivePool", "receives/receive_pool.hpp", {"reached"}, {"objects/shared_receive_queue.cpp"}},
    {"Context",
     "process/context.hpp",
     {"cable", "command", "events", "mode", "opened", "process", "tracing", "yields"},
     {"objects/device.cpp", "objects/tracing.cpp"},
     {"objects/create_queue_pair.cpp"}},  // a queue pair's cable
    {"ProtectionDomain",
     "process/domains.hpp",
     {"domain", "number", "parent_of", "thread_domain"},
     {"objects/create_domain.cpp"},
     {"objects/memory_region.cpp", "objects/create_extended_completion_queue.cpp"}},
    {"MemoryWindow", "process/memory_window.hpp", {"first_key"}, {"objects/bind_window.cpp"}},
    {"PeerLife", "system/liveness.hpp", {"lifeline", "process"}, {"fabric/peer_node.cpp"}},
};

struct Member {
    std::string type;
    std::string name;
    bool shown;  ///< public
};
/// Members by name of class.
using Classes = std::map<std::string, std::vector<Member>>;

/// Without attributes, alignment and, from the inside out, arguments of templates.
std::string bare(std::string declaration) {
    static const std::regex attribute{R"rx(\[\[[^\]]*\]\]|alignas\([^)]*\))rx"};
    static const std::regex arguments{R"rx(<[^<>]*>)rx"};
    declaration = std::regex_replace(declaration, attribute, "");
    for (std::string before; before != declaration;) {
        before = declaration;
        declaration = std::regex_replace(declaration, arguments, "");
    }
    return declaration;
}

/// The declarations of a header, as far as data members go. Not a compiler: what the house's own
/// style writes.
class Reader {
  public:
    Reader(const std::string& text, Classes& classes) : text_{plain(text)}, classes_{classes} {
        read("", true);
    }

  private:
    /// Without comments and what the preprocessor reads.
    static std::string plain(const std::string& text) {
        return std::regex_replace(text, std::regex{R"rx(//[^\n]*|(^|\n)[ \t]*#[^\n]*)rx"}, "$1");
    }
    static std::string trimmed(const std::string& text) {
        const auto begin = text.find_first_not_of(" \t\n");
        if (begin == std::string::npos) return "";
        return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
    }

    /// Behind the brace that closes the one at `at_`.
    void skip_braces() {
        int depth = 0;
        do {
            if (text_[at_] == '{') ++depth;
            if (text_[at_] == '}') --depth;
            ++at_;
        } while (depth != 0 && at_ < text_.size());
    }
    /// Behind a function's body; before it there may be a list of initialisers.
    void skip_function(const std::string& head) {
        static const std::regex list{R"rx(\)[^:]*:(?!:))rx"};
        const bool initialises = std::regex_search(head, list);
        for (;;) {
            const char before = text_[text_.find_last_not_of(" \t\n", at_ - 1)];
            const bool names = before == '_' || std::isalnum(static_cast<unsigned char>(before));
            skip_braces();
            if (!initialises || !names) return;
            at_ = text_.find('{', at_);
        }
    }

    /// The members of class `name`, or a namespace's if that is empty, up to its closing brace.
    void read(const std::string& name, bool shown) {
        static const std::regex type{R"rx(^(?:template\s*)?(struct|class|union)\s+(\w+))rx"};
        static const std::regex transparent{R"rx(^(?:inline\s+)?namespace\b|^extern\b)rx"};
        std::string statement;
        while (at_ < text_.size()) {
            const char next = text_[at_];
            if (next == '}') {
                ++at_;
                return;
            }
            if (next == ';') {
                ++at_;
                note(name, statement, shown);
                statement.clear();
            } else if (next == ':' && text_[at_ + 1] != ':' && is_access(trimmed(statement))) {
                ++at_;
                shown = trimmed(statement) == "public";
                statement.clear();
            } else if (next == '{') {
                const std::string head = trimmed(bare(statement));
                std::smatch found;
                if (std::regex_search(head, transparent)) {
                    ++at_;
                    read("", true);
                    statement.clear();
                } else if (head.find('(') != std::string::npos) {
                    skip_function(head);
                    statement.clear();
                } else if (std::regex_search(head, found, type)) {
                    ++at_;
                    const std::string inner = found[2];
                    classes_[inner];
                    read(inner, found[1] != "class");
                    statement = inner + ' ';  // of which a member may be made at once
                } else {
                    skip_braces();  // an initialiser, or an enumeration
                }
            } else {
                statement += next;
                ++at_;
            }
        }
    }
    static bool is_access(const std::string& word) {
        return word == "public" || word == "protected" || word == "private";
    }

    void note(const std::string& in, const std::string& statement, bool shown) {
        static const std::regex no_member{
            R"rx(^(using|friend|typedef|static|template|static_assert|struct|class|enum|inline|constexpr|return|extern)\b)rx"};
        static const std::regex member{R"rx(^(.*[\s>&*])(\w+)$)rx"};
        std::string declaration = trimmed(std::regex_replace(
            statement, std::regex{R"rx(\[\[[^\]]*\]\]|alignas\([^)]*\)|\[[^\]]*\])rx"}, ""));
        declaration = trimmed(declaration.substr(0, declaration.find('=')));
        declaration = trimmed(std::regex_replace(declaration, std::regex{R"rx(\s:\s\d+$)rx"}, ""));
        declaration = std::regex_replace(declaration, std::regex{R"rx(\s+)rx"}, " ");
        std::smatch found;
        if (in.empty() || std::regex_search(declaration, no_member) ||
            bare(declaration).find('(') != std::string::npos ||
            !std::regex_match(declaration, found, member)) {
            return;
        }
        classes_[in].push_back({trimmed(found[1]), found[2], shown});
    }

    const std::string text_;
    std::size_t at_ = 0;
    Classes& classes_;
};

bool is_lock_or_atomic(const std::string& type) {
    static const std::regex synchronised{
        R"rx(\b(std::atomic|std::mutex|SpinLock|ThreadLock|ErrandLock|Guarded)\b)rx"};
    return !type.ends_with('*') && std::regex_search(type, synchronised);
}

std::set<std::string> shared_among(const Classes& classes) {
    std::set<std::string> shared;
    for (const auto& [name, members] : classes) {
        for (const Member& member : members) {
            if (is_lock_or_atomic(member.type)) shared.insert(name);
        }
    }
    return shared;
}

/// Members "Class::name" that threads share, and nothing keeps one from changing them. `layout`:
/// classes that may be members besides.
std::set<std::string> open_members(const Classes& classes, const Classes& layout = {}) {
    static const std::regex constant{R"rx(^const\b[^*]*$|\bconst$|&$)rx"};
    const std::set<std::string> shared = shared_among(classes);
    const std::set<std::string> shared_by_processes = shared_among(layout);
    std::set<std::string> open;
    for (const auto& name : shared) {
        for (const Member& member : classes.at(name)) {
            const bool keeps_the_rule =
                std::regex_search(member.type, constant) || is_lock_or_atomic(member.type) ||
                shared.contains(bare(member.type)) || shared_by_processes.contains(member.type);
            if (member.shown && !keeps_the_rule) open.insert(name + "::" + member.name);
        }
    }
    return open;
}

/// The files of which one assigns a member of that name.
std::set<std::string> who_assigns(const std::string& member, const Files& files) {
    const std::string change = R"rx(\s*(=[^=]|[-+|&^]=|\.reset\())rx";
    const std::regex assigned{R"rx((\.|->|[;{}]\s*))rx" + member + change +
                              R"rx(|(\+\+|--)[\w.>()-]*\b)rx" + member + R"rx(\b)rx"};
    std::set<std::string> found;
    for (const auto& [file, text] : files) {
        static const std::regex comment{R"rx(//[^\n]*)rx"};
        if (std::regex_search(std::regex_replace(text, comment, ""), assigned)) found.insert(file);
    }
    return found;
}

std::set<std::string> without(std::set<std::string> names, const std::set<std::string>& others) {
    for (const auto& name : others) names.erase(name);
    return names;
}

TEST(SharedDataOfSoft, IsConstantAtomicOrBehindItsLock) {
    Classes classes;
    Classes layout;
    for (const auto& [file, text] : files_of_soft()) {
        if (file.ends_with(".hpp")) Reader{text, file.starts_with("layout/") ? layout : classes};
    }
    EXPECT_GT(shared_among(classes).size(), 30U);  // they were found
    std::set<std::string> listed;
    for (const Facts& facts : all_facts) {
        for (const auto& member : facts.members) listed.insert(facts.of + "::" + member);
    }
    const std::set<std::string> open = open_members(classes, layout);
    EXPECT_THAT(without(open, listed), IsEmpty()) << "put it behind its lock, or make it atomic";
    EXPECT_THAT(without(listed, open), IsEmpty()) << "it need not be listed";
}

TEST(SharedDataOfSoft, IsGivenToObjectsByWhoMakesThemAlone) {
    const Files files = files_of_soft();
    for (const Facts& facts : all_facts) {
        Files those;
        for (const auto& [file, text] : files) {
            if (file == facts.header || text.find('"' + facts.header + '"') != std::string::npos) {
                those[file] = text;
            }
        }
        EXPECT_GT(those.size(), 1U) << facts.header;
        std::set<std::string> may = facts.makers;
        may.insert(facts.others.begin(), facts.others.end());
        for (const auto& member : facts.members) {
            EXPECT_THAT(without(who_assigns(member, those), may), IsEmpty())
                << facts.of << "::" << member;
        }
    }
}

TEST(SharedDataCheck, FindsAMemberThatALockGuards) {
    Classes classes;
    const Reader reader{R"(
namespace a {
struct Line { std::atomic<int> word{0}; };
class Queue : public Base {
  public:
    Queue(int a, int b) : limit_{a}, Base{b} { count = 1; }
    [[nodiscard]] int all() const noexcept { return count; }
    std::function<void()> told;   ///< with the lock
    alignas(64) std::vector<std::pair<int, int>> waiting;
    int count = 0;
    const int most = 1;
    const int* shown = nullptr;
    int* const kept = nullptr;
    std::atomic<bool> often{false};
    Guarded<std::map<int, int>, Lock> sends{block};
    Line line;
    struct Inner { int plain = 0; };
    enum class Kind { one, two };
    friend class Other;
    static constexpr int few = 3;

  private:
    std::mutex mutex_;
    int limit_ = 0;
};
struct Plain { int value = 0; };
}
)",
                        classes};
    EXPECT_THAT(open_members(classes), UnorderedElementsAre("Queue::told", "Queue::waiting",
                                                            "Queue::count", "Queue::shown"));
}

TEST(SharedDataCheck, FindsWhoAssignsAMember) {
    const Files files{{"a.cpp", "qp.count = 1;"},          {"b.cpp", "if (qp->count == 1) return;"},
                      {"c.cpp", "++qp->count;"},           {"d.cpp", "{\n    count |= 2;\n"},
                      {"e.cpp", "// qp.count = 1;"},       {"f.cpp", "int count = 2; account = 1;"},
                      {"g.cpp", "qp.count.reset(new int)"}};
    EXPECT_THAT(who_assigns("count", files), ElementsAre("a.cpp", "c.cpp", "d.cpp", "g.cpp"));
}

}  // namespace
