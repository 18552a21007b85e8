// The memcached door answers as memcached does: generated text and meta commands, right and wrong
// ones, byte by byte. MILLRACE_TEST_SEED (default 1, long: random) repeats what has failed.
//
// What differs, each for a reason that docs/kv-doors.md tells, and is not generated here or is made
// alike:
//   cas uniques       are other numbers: each server is given its own
//   touch, gat, mg T  change the cas unique here
//   incr, decr        leave no blanks behind a number that has become shorter
//   times             of two servers that were not asked at one moment; what is over has 0 here
//   ma with T         gives a number that becomes longer its time here, too
//   who has won       is kept here where a number is counted on: memcached forgets it where the
//                     number becomes longer, and, by chance, where its own thread holds the item
//   h, l, me          what the store does not keep
//   numbers of 2^63 and more are some for memcached 1.6.18, or none, by what lies behind them
//   control characters in keys, lengths and times of more than 32 bits, values of 1 MiB
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <map>
#include <random>
#include <sstream>

#include "doors/memcached_client.hpp"

namespace millrace::kv {
namespace {

std::vector<std::string> words_of(const std::string& line) {
    std::istringstream in{line};
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
}

bool is_number(std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// The cas uniques in answers, by key.
using Seen = std::map<std::string, std::string>;

/// An answer as both servers give it: without cas uniques, which it adds to `seen`, and without the
/// blanks behind numbers. `key`: whose the flags of meta answers are.
std::string alike(const std::string& answer, const std::string& key, Seen& seen) {
    std::string text;
    for (std::size_t at = 0; at < answer.size();) {
        const std::size_t end = std::min(answer.find("\r\n", at), answer.size());
        auto words = words_of(answer.substr(at, end - at));
        at = std::min(end + 2, answer.size());
        std::size_t size_at = 0;
        if (!words.empty() && words[0] == "VALUE" && words.size() >= 4) size_at = 3;
        if (!words.empty() && words[0] == "VA" && words.size() >= 2) size_at = 1;
        std::string data;
        if (size_at != 0) {
            const std::size_t size = std::stoul(words[size_at]);
            data = answer.substr(at, size);
            at = std::min(at + size + 2, answer.size());
            data.erase(data.find_last_not_of(' ') + 1);
            words[size_at] = std::to_string(data.size());
            if (words[0] == "VALUE" && words.size() == 5) {
                seen[words[1]] = std::exchange(words[4], "CAS");
            }
        }
        const bool is_meta = !words.empty() && words[0].size() == 2;
        for (std::size_t i = 1; is_meta && i < words.size(); ++i) {
            std::string& word = words[i];
            if (word[0] == 'c' && is_number(word.substr(1)) && word != "c0") {
                seen[key] = std::exchange(word, "cCAS").substr(1);
            } else if (word[0] == 't' && is_number(word.substr(1))) {
                // Times are multiples of a thousand seconds; those that are over have passed zero
                // there, and do not come back from it.
                if (word.size() == 11 && word[1] == '4') word = "t0";
                word = 't' + std::to_string((std::stoll(word.substr(1)) + 50) / 1000);
            }
        }
        for (const std::string& word : words) text += word + ' ';
        text += '|' + data + '\n';
    }
    return text;
}

struct Generated {
    std::string text;        ///< with "{cas}" where a cas unique goes
    std::string key;         ///< whose
    bool may_touch = false;  ///< it may change the cas unique here alone
    bool takes_old = false;  ///< an older one does, too
};

/// Commands by chance: mostly right.
class TextCommands {
  public:
    explicit TextCommands(std::uint64_t seed) : random_{seed} {}

    Generated next() {
        Generated one = any();
        if (one_of(80)) return {wrong_line(), one.key};
        return one;
    }

  private:
    std::size_t below(std::size_t count) { return random_() % count; }
    bool one_of(std::size_t count) { return below(count) == 0; }
    std::string among(std::initializer_list<const char*> words) {
        return *(words.begin() + below(words.size()));
    }
    /// Of values that are no numbers, and of those that are.
    std::string text_key() { return 'k' + std::to_string(below(6)); }
    std::string number_key() { return 'n' + std::to_string(below(3)); }
    std::string text_value() {
        if (one_of(8)) return {};
        std::string value = among({"v", "value", "END", "VALUE k0 0 1"});
        if (one_of(3)) value += std::string(below(300), static_cast<char>('a' + below(26)));
        if (one_of(6)) value += "\r\nx";
        if (one_of(6)) value += std::string("\0\xff\x80", 3) + 'x';
        return value;
    }
    std::string number_value() {
        return among({"0", "1", "9", "10", "99", "100", "5 apples", "007", "+3", "-1", "",
                      "1000000000000", "18446744073709551616", "999", "abc", "1.5"});
    }
    std::string number() {
        return among({"0", "1", "1", "2", "10", "99", "1000000000000", "18446744073709551616", "-1",
                      "x", "1x", "+2", "007"});
    }
    std::string flags() {
        return one_of(12) ? among({"x", "-1", "1x", ""}) + "y"
                          : among({"0", "0", "1", "16", "65535", "4294967295"});
    }
    std::string time() {
        if (one_of(25)) return among({"x", "1x", "--1"});
        if (one_of(8)) return among({"-1", "-100", "2592001"});
        return one_of(2) ? "0" : std::to_string(1000 * (1 + below(2000)));
    }
    std::string noreply() { return one_of(10) ? " noreply" : ""; }
    std::string with_data(std::string line, const std::string& tail, std::string data) {
        line += ' ' + std::to_string(data.size()) + tail + "\r\n";
        if (one_of(60)) data += 'x';  // more than was said
        return line + data + "\r\n";
    }
    std::string wrong_line() {
        return among({"",
                      " ",
                      "foo",
                      "g",
                      "get",
                      "gets",
                      "gat",
                      "gat x",
                      "gat 10",
                      "set",
                      "set k0 0 0",
                      "set k0 0 0 -1",
                      "set k0 0 0 x",
                      "set k0 0 0 1 2 3",
                      "add k0 0 0 noreply",
                      "cas k0 0 0 1",
                      "incr n0",
                      "incr n0 1 2 3",
                      "decr",
                      "delete",
                      "delete k0 1",
                      "delete k0 0 1",
                      "delete k0 0 noreply",
                      "delete noreply",
                      "touch k0",
                      "touch k0 x",
                      "touch k0 noreply",
                      "mg",
                      "ms",
                      "ms k0",
                      "ms k0 x",
                      "ms k0 -1",
                      "md",
                      "ma",
                      "me",
                      "mx",
                      "mgg",
                      "flush_all x",
                      "flush_all 0 1 2",
                      "verbosity",
                      "verbosity x",
                      "verbosity 1 2 3",
                      "stats foo",
                      "quitter",
                      "GET k0",
                      "get k0  k1",
                      "  get k0",
                      "get k0 k1 "}) +
               (one_of(2) ? "\r\n" : "\n");
    }
    std::string long_key() { return std::string(251 + below(50), 'k'); }
    std::string opaque() { return " O" + std::to_string(below(1000)); }
    /// Some of these, in any order.
    std::string some(std::vector<std::string> flags) {
        std::ranges::shuffle(flags, random_);
        flags.resize(below(std::min<std::size_t>(flags.size(), 6) + 1));
        std::string text;
        for (const std::string& flag : flags) text += ' ' + flag;
        if (one_of(40)) text += among({" z", " !", " E", " q q", " b"});
        return text;
    }
    std::string time_flag(char letter) { return letter + time(); }

    Generated any() {
        switch (below(26)) {
            case 0:
            case 1: {
                std::string line = among({"get", "gets"});
                for (std::size_t i = 1 + below(30); i-- != 0;) {
                    line += ' ' + (one_of(3) ? number_key() : text_key());
                }
                if (one_of(60)) line += ' ' + long_key();
                return {line + "\r\n", "k0"};
            }
            case 2: {
                const std::string key = text_key();
                return {among({"gat ", "gats "}) + time() + ' ' + key + "\r\n", key, true};
            }
            case 3:
            case 4:
            case 5: {
                const std::string key = one_of(40) ? long_key() : text_key();
                const std::string name =
                    among({"set", "set", "add", "replace", "append", "prepend"});
                return {with_data(name + ' ' + key + ' ' + flags() + ' ' + time(), noreply(),
                                  text_value()),
                        key};
            }
            case 6:
            case 7: {
                const std::string key = number_key();
                return {with_data(among({"set ", "add ", "replace "}) + key + ' ' + flags() + ' ' +
                                      time(),
                                  noreply(), number_value()),
                        key};
            }
            case 8:
            case 9: {
                const std::string key = text_key();
                return {with_data("cas " + key + ' ' + flags() + ' ' + time(),
                                  ' ' + cas() + noreply(), text_value()),
                        key};
            }
            case 10:
            case 11:
            case 12: {
                const std::string key = one_of(6) ? text_key() : number_key();
                return {among({"incr ", "decr "}) + key + ' ' + number() + noreply() + "\r\n", key};
            }
            case 13: {
                const std::string key = one_of(3) ? number_key() : text_key();
                return {"delete " + key + noreply() + "\r\n", key};
            }
            case 14: {
                const std::string key = one_of(3) ? number_key() : text_key();
                return {"touch " + key + ' ' + time() + noreply() + "\r\n", key, true};
            }
            case 15:
                return {one_of(10) ? "flush_all" + noreply() + "\r\n" : "verbosity 0\r\n", "k0"};
            case 16:
                return {one_of(2) ? "stats sizes\r\n" : "verbosity 1" + noreply() + "\r\n", "k0"};
            case 17:
            case 18:
            case 19: {
                const bool is_text = !one_of(4);
                const std::string key = is_text ? text_key() : number_key();
                std::vector<std::string> flags{"v",
                                               "k",
                                               "t",
                                               "c",
                                               "f",
                                               "q",
                                               "u",
                                               opaque().substr(1),
                                               "P",
                                               "Lx",
                                               time_flag('T'),
                                               time_flag('N')};
                if (is_text) {
                    flags.emplace_back("s");
                    flags.push_back('R' + among({"30", "1500", "1000500", "x", "-1"}));
                }
                const std::string said = encoded(key, flags);
                return {"mg " + said + some(flags) + "\r\n", key, true};
            }
            case 20:
            case 21:
            case 22: {
                const bool is_text = !one_of(4);
                const std::string key = one_of(40) ? long_key()
                                        : is_text  ? text_key()
                                                   : number_key();
                std::vector<std::string> flags{
                    "k",
                    "c",
                    "q",
                    opaque().substr(1),
                    time_flag('T'),
                    'F' + this->flags(),
                    'C' + cas(),
                    is_text ? 'M' + among({"S", "E", "A", "P", "R", "X", "", "s"})
                            : 'M' + among({"S", "E", "R"})};
                if (is_text) flags.emplace_back("I");
                std::string tail = some(flags);
                const bool takes_old = tail.find(" I") != std::string::npos;
                return {with_data("ms " + key, tail, is_text ? text_value() : number_value()), key,
                        false, takes_old};
            }
            case 23:
            case 24: {
                const bool is_text = !one_of(4);
                const std::string key = is_text ? text_key() : number_key();
                std::vector<std::string> flags{"k", "q", opaque().substr(1), time_flag('T'),
                                               'C' + cas()};
                if (is_text) flags.insert(flags.end(), {"I", "I"});
                return {"md " + key + some(flags) + "\r\n", key, true};
            }
            default: {
                const std::string key = one_of(6) ? text_key() : number_key();
                std::vector<std::string> flags{"k",
                                               "v",
                                               "c",
                                               "t",
                                               opaque().substr(1),
                                               time_flag('N'),
                                               'C' + cas(),
                                               'D' + number(),
                                               'J' + number(),
                                               'M' + among({"I", "D", "+", "-", "x"})};
                // Whether a number that is made is told to who is quiet, versions differ on.
                const std::string tail = some(flags);
                const bool makes = tail.find(" N") != std::string::npos;
                return {"ma " + key + (makes || !one_of(5) ? "" : " q") + tail + "\r\n", key, true};
            }
        }
    }
    std::string cas() {
        return one_of(4) ? among({"0", "1", "18446744073709551615", "x"}) : "{cas}";
    }
    /// Now and then in base64.
    std::string encoded(const std::string& key, std::vector<std::string>& flags) {
        if (!one_of(8) || key[1] != '0') return key;
        // Who asks so is told so; memcached tells it as it was stored. So it is not told.
        std::erase(flags, "k");
        return (key == "k0" ? "azA=" : "bjA=") + std::string{" b"};
    }

    std::mt19937_64 random_;
};

std::string with_cas(std::string text, const std::string& cas) {
    const std::size_t at = text.find("{cas}");
    return at == std::string::npos ? text : text.replace(at, 5, cas);
}

class BesideMemcached : public testing::Test {
  protected:
    void SetUp() override {
        if (memcached == nullptr) {
            GTEST_SKIP() << "memcached is not installed: scripts/install-dependencies test";
        }
    }
    std::unique_ptr<MemcachedServer> memcached = MemcachedServer::start();
    DoorServing serving;
    TextClient ours{serving};
    TextClient theirs = memcached != nullptr ? memcached->client() : TextClient{serving};
};

TEST_F(BesideMemcached, AnswersGeneratedCommandsByteByByte) {
    const char* const chosen = std::getenv("MILLRACE_TEST_SEED");
    const bool lengthy = std::getenv("MILLRACE_TEST_LONG") != nullptr;
    const std::uint64_t seed = chosen != nullptr ? std::stoull(chosen)
                               : lengthy         ? std::random_device{}()
                                                 : 1;
    SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
    TextCommands commands{seed};
    Seen our_cas;
    Seen their_cas;
    const auto cas_of = [](const Seen& seen, const std::string& key) {
        const auto found = seen.find(key);
        return found == seen.end() ? std::string{"18446744073709551614"} : found->second;
    };
    std::vector<std::string> last;
    std::size_t answered = 0;
    for (int i = 0; i < 20'000; ++i) {
        const Generated one = commands.next();
        const std::string our_text = with_cas(one.text, cas_of(our_cas, one.key));
        const std::string their_text = with_cas(one.text, cas_of(their_cas, one.key));
        last.push_back(our_text);
        if (one.may_touch) {
            our_cas.erase(one.key);
            their_cas.erase(one.key);
        }
        const std::string mine = ours.ask(our_text);
        const std::string other = theirs.ask(their_text);
        answered += mine.empty() ? 0 : 1;
        if (alike(mine, one.key, our_cas) == alike(other, one.key, their_cas)) continue;
        std::string before;
        for (std::size_t at = last.size() < 12 ? 0 : last.size() - 12; at < last.size(); ++at) {
            before += "\n    " + testing::PrintToString(last[at].substr(0, 400));
        }
        FAIL() << "command " << i << " of seed " << seed << ", behind" << before
               << "\n  ours:        " << testing::PrintToString(mine.substr(0, 400))
               << "\n  memcached's: " << testing::PrintToString(other.substr(0, 400));
    }
    EXPECT_GT(answered, 15'000U);
}

/// What is written here is asked of both.
class SaidByMemcached : public BesideMemcached {
  protected:
    void expect_same(const std::string& requests) {
        Seen nothing;
        EXPECT_EQ(alike(ours.ask(requests), "k", nothing),
                  alike(theirs.ask(requests), "k", nothing))
            << testing::PrintToString(requests.substr(0, 200));
    }
};

TEST_F(SaidByMemcached, OfValuesThatAreTooLarge) {
    expect_same(storing("set k 0 0", "old"));
    const std::string large(3'000'000, 'v');
    expect_same(storing("set k 0 0", large));
    expect_same("get k\r\n");
    expect_same(storing("set k 0 0", "old"));
    expect_same(storing("add k 0 0", large));
    expect_same("get k\r\n");
    expect_same("set k 0 0 3000000 noreply\r\n" + large + "\r\n");
    expect_same("get k\r\n");
    expect_same(storing("set k 0 0", "old"));
    expect_same("ms k 3000000 q O1\r\n" + large + "\r\n");
    expect_same("get k\r\n");
}

TEST_F(SaidByMemcached, OfWhatIsInvalidAndWonBySomebody) {
    expect_same("ms k 5 T90000\r\nvalue\r\n");
    expect_same("md k I T30000\r\n");
    expect_same("mg k v t f\r\n");  // W
    expect_same("mg k v t f\r\n");  // Z
    expect_same("md k I T30000\r\n");
    expect_same("mg k v t f\r\n");  // W: who was to make it anew did not in time
    expect_same("touch k 90000\r\n");
    expect_same("mg k v t\r\n");
    expect_same("ms k 3 I C1\r\nold\r\n");
    expect_same("mg k v t\r\n");
    expect_same("append k 0 0 1\r\nx\r\n");
    expect_same("mg k v t\r\n");
    expect_same("mg other N30000 v t\r\n");
    expect_same("mg other N30000 v t\r\n");
    expect_same("mg k R100000 v\r\n");
    expect_same("mg k R100000 v\r\n");
    expect_same("set k 7 0 1\r\nx\r\n");
    expect_same("mg k v f s t\r\n");
}

TEST_F(SaidByMemcached, OfAKeyInBase64) {
    expect_same("ms Zm9vIGJhcg== 5 b k\r\nvalue\r\n");
    expect_same("mg Zm9vIGJhcg== b k v\r\n");
    expect_same("mg Zm9v b k v O9\r\n");
    expect_same("md Zm9vIGJhcg== b k\r\n");
    expect_same("ma Zm9vIGJhcg== b N0 k v\r\n");
    expect_same("mg %%%% b v\r\n");
    expect_same("ms %%%% 1 b\r\nx\r\n");
    expect_same("mg Zm9v b k\r\n");
    expect_same("me Zm9v b\r\n");
    expect_same("me %%%% b\r\n");
}

TEST_F(SaidByMemcached, OfNumbersWithATime) {
    expect_same("ma n N90000 J5 t v\r\n");
    expect_same("ma n T30000 t v\r\n");
    expect_same("ma n t T90000\r\n");
    expect_same("ma n T0 t D2 MD v\r\n");
    expect_same("ma n t c k O5 q\r\n");
    expect_same("ma n T-1\r\nget n\r\n");
}

TEST_F(SaidByMemcached, OfOpaqueTokens) {
    expect_same("mg none O0123456789012345678901234567890 k\r\n");
    expect_same("mg none O01234567890123456789012345678901\r\n");
    expect_same("ms k 1 O01234567890123456789012345678901\r\nx\r\n");
    expect_same("md none O01234567890123456789012345678901\r\n");
    expect_same("mg none q O1\r\nmg none O2\r\n");
}

TEST_F(SaidByMemcached, OfLinesWithManyWords) {
    expect_same("mg none a b c d e f g h i j k l m n o p q r s\r\n");
    expect_same("ms k 1 a b c d e f g h i j k l m n o p q r s\r\n");
    // Nineteen words are few enough, twenty are not: and no data follow these.
    for (const char* flags :
         {" q k O1 T0 F1 I MS a d e f g h i j l", " q k O1 T0 F1 I MS a d e f g h i j l m",
          " q k O1 T0 F1 I MS a d e f g h i j l m n"}) {
        expect_same("ms k 1" + std::string{flags} + "\r\nx\r\n");
        expect_same("mg k" + std::string{flags} + " n\r\n");
    }
    std::string keys;
    for (int i = 0; i < 2000; ++i) keys += " key" + std::to_string(i);
    expect_same(storing("set key1999 0 0", "x"));
    expect_same("get" + keys + "\r\n");
    expect_same("gets" + keys + " " + std::string(251, 'k') + "\r\n");
}

TEST_F(SaidByMemcached, ThatABrowserIsWrongHere) {
    ASSERT_TRUE(ours.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_EQ(ours.rest(), "");
    ASSERT_TRUE(theirs.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_EQ(theirs.rest(), "");
}

}  // namespace
}  // namespace millrace::kv
