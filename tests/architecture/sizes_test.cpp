// What keeps the floors above the soft device easy to read: files of at most 500 lines, classes of
// at most 25 data members, and public options of at most 16 fields. A larger class has a line
// below, with the size that it may not exceed; the list only shrinks.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "architecture/files.hpp"

namespace {

namespace fs = std::filesystem;
using millrace::architecture::source_tree;
using millrace::architecture::text_of;
using testing::IsEmpty;

constexpr std::size_t most_lines = 500;
constexpr std::size_t most_members = 25;
constexpr std::size_t most_fields = 16;
using Exceptions = std::map<std::string, std::size_t>;

const Exceptions large_classes{
    {"TransmitterBase", 28},
    {"SocketStats", 31},
    {"Channel::Core", 68},
    {"Receiver", 30},
    {"Sender", 44},
    {"Socket::Core", 50},
    {"SharedProducerEnd::State", 31},
};

/// Sources and headers of the floors 4 to 7, by their name in the source tree.
const std::map<std::string, std::string>& sources() {
    static const auto all = [] {
        std::map<std::string, std::string> found;
        for (const char* floor : {"end", "ring", "flow", "message", "stream", "rpc", "kv"}) {
            for (const fs::path& root : {fs::path{"src"}, fs::path{"include/millrace"}}) {
                if (!fs::exists(source_tree() / root / floor)) continue;
                for (const auto& entry :
                     fs::recursive_directory_iterator{source_tree() / root / floor}) {
                    const std::string extension = entry.path().extension();
                    if (extension != ".cpp" && extension != ".hpp") continue;
                    found[entry.path().lexically_relative(source_tree())] = text_of(entry.path());
                }
            }
        }
        return found;
    }();
    return all;
}

/// Without comments, texts, preprocessor and attributes.
std::string code_of(const std::string& text) {
    static const std::regex left_out{
        R"rx(//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|(?:^|\n)\s*#[^\n]*|\[\[[^\]]*\]\])rx"};
    return std::regex_replace(text, left_out, " ");
}

/// The place after the bracket that closes what opens at `at`.
std::size_t end_of(const std::string& code, std::size_t at, char open, char close) {
    std::size_t depth = 0;
    for (; at < code.size(); ++at) {
        if (code[at] == open) ++depth;
        if (code[at] == close && --depth == 0) return at + 1;
    }
    return code.size();
}

/// A statement of a class says what a member is, and not a type or a function.
bool is_member(std::string statement) {
    static const std::regex label{R"(\b(public|protected|private)\s*:(?!:))"};
    static const std::regex pointed{R"(<[^<>]*>)"};
    static const std::regex others{
        R"(^\s*(using|friend|static|typedef|template|struct|class|enum|explicit|virtual|operator)\b)"};
    static const std::regex aligned{R"(\balignas\()"};
    statement = std::regex_replace(statement, label, "");
    statement = std::regex_replace(statement, aligned, "");
    for (std::string before; before != statement;) {
        before = std::exchange(statement, std::regex_replace(statement, pointed, ""));
    }
    if (statement.find_first_not_of(" \n\t") == statement.npos) return false;
    if (std::regex_search(statement, others)) return false;
    return statement.substr(0, statement.find('=')).find('(') == statement.npos;
}

/// Data members of the class whose body begins at `at`, and of none that is within.
std::size_t members_of(const std::string& code, std::size_t at) {
    std::size_t count = 0;
    std::string statement;
    for (++at; at < code.size() && code[at] != '}'; ++at) {
        if (code[at] == ';') {
            if (is_member(std::exchange(statement, {}))) ++count;
        } else if (code[at] == '(') {
            statement += '(';
            at = end_of(code, at, '(', ')') - 1;
        } else if (code[at] == '{') {
            static const std::regex type{R"((^|[;:\s])(struct|class|enum|union)\s)"};
            const bool is_value = !std::regex_search(statement, type) && is_member(statement);
            at = end_of(code, at, '{', '}') - 1;
            if (!is_value) statement.clear();
        } else {
            statement += code[at];
        }
    }
    return count;
}

/// Members of each class, by its name.
std::map<std::string, std::size_t> classes_of(const std::string& text) {
    static const std::regex begin{
        R"rx(\b(?:struct|class)\s+(?:alignas\([^)]*\)\s+)?([A-Za-z_][\w:]*)(?:\s+final)?\s*(?::[^;{]*)?\{)rx"};
    std::map<std::string, std::size_t> found;
    const std::string code = code_of(text);
    for (std::sregex_iterator match{code.begin(), code.end(), begin}, end; match != end; ++match) {
        const auto at = static_cast<std::size_t>(match->position() + match->length()) - 1;
        std::size_t& members = found[(*match)[1]];
        members = std::max(members, members_of(code, at));
    }
    return found;
}

std::set<std::string> larger(const std::map<std::string, std::size_t>& sizes, std::size_t most,
                             const Exceptions& exceptions) {
    std::set<std::string> found;
    for (const auto& [name, size] : sizes) {
        const auto allowed = exceptions.find(name);
        if (size > (allowed == exceptions.end() ? most : allowed->second)) {
            found.insert(name + ": " + std::to_string(size));
        }
    }
    return found;
}

TEST(Sizes, OfFilesAreSmall) {
    std::map<std::string, std::size_t> lines;
    for (const auto& [name, text] : sources()) {
        std::size_t& longest = lines[fs::path{name}.filename()];
        longest =
            std::max(longest, static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')));
    }
    EXPECT_GT(lines.size(), 120U);
    EXPECT_THAT(larger(lines, most_lines, {}), IsEmpty());
}

TEST(Sizes, OfClassesAreSmall) {
    std::map<std::string, std::size_t> members;
    for (const auto& [name, text] : sources()) {
        for (const auto& [one, count] : classes_of(text)) {
            members[one] = std::max(members[one], count);
        }
    }
    EXPECT_GT(members.size(), 300U);
    EXPECT_THAT(larger(members, most_members, large_classes), IsEmpty());
}

TEST(Sizes, OfPublicOptionsAreSmall) {
    std::map<std::string, std::size_t> fields;
    for (const auto& [name, text] : sources()) {
        if (!name.starts_with("include/")) continue;
        for (const auto& [one, count] : classes_of(text)) {
            if (one.ends_with("Options")) fields[one] = std::max(fields[one], count);
        }
    }
    EXPECT_GT(fields.size(), 10U);
    EXPECT_THAT(larger(fields, most_fields, {}), IsEmpty());
}

TEST(Sizes, AreCountedByMembers) {
    const std::string text = R"(
class One : public Base<int> {
  public:
    explicit One(int its) : a_{its} { b_ = 1; }
    [[nodiscard]] int a() const { return a_; }  // int c;
    struct Inner { int x; int y; } inner_;
    enum class Kind { one, two };
    static constexpr int most = 3;
    void call(std::function<void(int)> what);
  private:
    using Calls = std::vector<int>;
    alignas(64) int a_;
    int d_{3};
    int b_ = compute(1);
    std::function<void(int, int)> call_;
    std::string text_{"a;b"};
};)";
    const auto found = classes_of(text);
    EXPECT_EQ(found.at("One"), 6U);
    EXPECT_EQ(found.at("Inner"), 2U);
}

}  // namespace
