// Item types are told apart by their names, also where their bytes would fit.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "flow/ends.hpp"
#include "millrace/flow/any.hpp"
#include "millrace/flow/item_name.hpp"
#include "support/child_process.hpp"

namespace app {

struct Event {
    std::int64_t number;
};
/// The same under the name that it had in an earlier release.
struct Happening {
    std::int64_t number;
};
struct Renamed {
    std::int64_t number;
};
template <class T, int>
struct Box {
    T content;
};
enum class Color { red };
template <Color>
struct Colored {};
inline namespace v2 {
struct Deep {
    std::int64_t number;
};
}  // namespace v2
inline auto make_local() {
    struct Local {
        std::int64_t number;
    };
    return Local{};
}

}  // namespace app

template <>
struct millrace::flow::ItemName<app::Happening> {
    static constexpr std::string_view value = "org.example.happening/2";
};
template <>
struct millrace::flow::ItemName<app::Renamed> {
    static constexpr std::string_view value = "org.example.happening/2";
};

namespace millrace::flow {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using base::Status;
using millrace::test::ChildProcess;
using millrace::test::say;
using test::unique_address;
using test::with_endpoint;

TEST(ItemName, IsWhatAProgramWouldWrite) {
    EXPECT_EQ(item_name<long>(), "long");
    EXPECT_EQ(item_name<unsigned long>(), "unsigned long");
    EXPECT_EQ(item_name<long long>(), "long long");
    EXPECT_EQ(item_name<unsigned>(), "unsigned int");
    EXPECT_EQ(item_name<short>(), "short");
    EXPECT_EQ(item_name<unsigned char>(), "unsigned char");
    EXPECT_EQ(item_name<signed char>(), "signed char");
    EXPECT_EQ(item_name<char>(), "char");
    EXPECT_EQ(item_name<double>(), "double");
    EXPECT_EQ(item_name<long double>(), "long double");
    EXPECT_EQ(item_name<std::byte>(), "std::byte");
    EXPECT_EQ((item_name<std::array<float, 4>>()), "std::array<float,4>");
    EXPECT_EQ(item_name<std::complex<double>>(), "std::complex<double>");
    EXPECT_EQ(item_name<app::Event>(), "app::Event");
    EXPECT_EQ((item_name<app::Box<app::Box<unsigned long, -1>, 3>>()),
              "app::Box<app::Box<unsigned long,-1>,3>");
    EXPECT_EQ(item_name<app::Happening>(), "org.example.happening/2");
}

/// A compiler's own spelling differs here: "[with T = int]", or no function at all.
template <class T>
auto make_local(T content) {
    struct Local {
        T content;
    };
    return Local{content};
}

TEST(ItemName, IsTheLinkersWhereCompilersSpellATypeEachInItsWay) {
    EXPECT_EQ(item_name<app::Deep>(), "app::v2::Deep");
    EXPECT_EQ(item_name<app::Colored<app::Color::red>>(), "app::Colored<(app::Color)0>");
    EXPECT_EQ(item_name<decltype(app::make_local())>(), "app::make_local()::Local");
    const std::string in_template{item_name<decltype(make_local(1))>()};
    EXPECT_TRUE(in_template.ends_with("make_local<int>(int)::Local")) << in_template;
}

TEST(ItemName, IsTheSameHoweverACompilerSpellsIt) {
    const auto name = [](std::string_view spelled) {
        const base::detail::TypeName made = base::detail::normalised(spelled);
        return std::string{made.text.data(), made.size};
    };
    // What GCC writes, and what Clang does.
    EXPECT_EQ(name("long unsigned int"), name("unsigned long"));
    EXPECT_EQ(name("short unsigned int"), name("unsigned short"));
    EXPECT_EQ(name("long long int"), name("long long"));
    EXPECT_EQ(name("long int [2]"), name("long[2]"));
    EXPECT_EQ(name("A<B<long int> >"), name("A<B<long>>"));
    EXPECT_EQ(name("std::array<int, 2>"), name("std::array<int, 2UL>"));
    EXPECT_EQ(name("{anonymous}::A"), name("(anonymous namespace)::A"));
    EXPECT_EQ(name("std::__cxx11::basic_string<char>"), name("std::__1::basic_string<char>"));
    EXPECT_EQ(name("const volatile long int"), "const volatile long");
    EXPECT_EQ(name("unsigned int"), "unsigned int");
    EXPECT_EQ(name("A<const long unsigned int*, unsigned char>"),
              "A<const unsigned long*,unsigned char>");
    EXPECT_EQ(name("long double"), "long double");
    // And what is not to be made equal.
    EXPECT_NE(name("unsigned char"), name("char"));
    EXPECT_NE(name("signed char"), name("char"));
    EXPECT_NE(name("long"), name("long long"));
    EXPECT_NE(name("longint"), name("long int"));
    EXPECT_NE(name("A<1>"), name("A<11>"));
}

static_assert(PlainItem<std::array<std::optional<long>, 2>>);
static_assert(PlainItem<app::Event>);
static_assert(!PlainItem<int*>);
static_assert(!PlainItem<const char*>);
static_assert(!PlainItem<void (*)()>);
static_assert(!PlainItem<int app::Event::*>);
static_assert(!PlainItem<std::nullptr_t>);
static_assert(!PlainItem<std::array<int*, 2>>);
static_assert(!PlainItem<std::optional<int*>>);
static_assert(!PlainItem<std::string_view>);
static_assert(!PlainItem<std::span<int>>);
static_assert(!PlainItem<std::reference_wrapper<int>>);
static_assert(!PlainItem<std::variant<int, int*>>);

TEST(ItemName, LongerThanItsPlaceIsCutAndStillOne) {
    const std::string spelled(5'000, 'x');
    EXPECT_EQ(base::detail::normalised(spelled).size, base::detail::TypeName{}.text.size());
}

MILLRACE_CHILD(flow_named_producer) {
    const std::string& address = arguments[0];
    const auto produce = [&]<class T>(T item) {
        try {
            auto producer =
                Producer<T>::connect(address, {.ring = {.capacity = 8}}, Deadline::after(40s));
            const bool sent = producer.enqueue(item, Deadline::after(40s)) == Status::ok &&
                              producer.close(Deadline::after(40s)) == Status::ok;
            say(sent ? "sent" : "not sent");
        } catch (const base::Error& error) {
            say(error.what());
        }
    };
    if (arguments[1] == "double") produce(2.5);
    if (arguments[1] == "long") produce(7L);
    if (arguments[1] == "event") produce(app::Event{7});
    if (arguments[1] == "renamed") produce(app::Renamed{7});
    return 0;
}

/// What a producer in another process reports, and what this end's consumer is told.
template <class T>
std::pair<std::string, std::string> meet(const char* type) {
    Listener listener = Listener::listen(unique_address(), {.ring = {.capacity = 8}});
    ChildProcess child =
        ChildProcess::start("flow_named_producer", {listener.address().to_string(), type});
    std::string here = "received";
    try {
        connect::Link link = listener.links().accept_speaking(Deadline::after(40s));
        const detail::ItemFacts facts = detail::item_facts<T>();
        (void)ring::agree(link, ring::Role::consumer, ring::design_2, listener.options().ring,
                          facts, Deadline::after(40s));
    } catch (const base::Error& error) {
        here = error.what();
    }
    return {child.read_line().value_or("said nothing"), here};
}

TEST(ItemName, TellsTypesOfOneSizeApartAndNamesBothAtBothEnds) {
    const auto [there, here] = meet<long>("double");
    EXPECT_NE(here.find("this end has items 'long' of 8 bytes aligned to 8, the other end has "
                        "items 'double' of 8 bytes aligned to 8"),
              std::string::npos)
        << here;
    EXPECT_NE(there.find("this end has items 'double' of 8 bytes aligned to 8, the other end has "
                         "items 'long' of 8 bytes aligned to 8"),
              std::string::npos)
        << there;
    EXPECT_NE(there.find("flow::ItemName"), std::string::npos) << there;
}

TEST(ItemName, TellsAProgramsTypesApart) {
    const auto [there, here] = meet<app::Happening>("event");
    EXPECT_NE(here.find("'org.example.happening/2'"), std::string::npos) << here;
    EXPECT_NE(here.find("'app::Event'"), std::string::npos) << here;
    EXPECT_NE(there.find("'org.example.happening/2'"), std::string::npos) << there;
}

template <class T>
void expect_to_receive(const char* type, T expected) {
    Listener listener = Listener::listen(unique_address(), {.ring = {.capacity = 8}});
    ChildProcess child =
        ChildProcess::start("flow_named_producer", {listener.address().to_string(), type});
    auto consumer = AnyConsumer<T>::accept(ring::design_2, listener, Deadline::after(40s));
    T item{};
    EXPECT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(std::memcmp(&item, &expected, sizeof item), 0);
    EXPECT_EQ(consumer.dequeue(item, Deadline::after(40s)), Status::closed);
    EXPECT_EQ(child.read_line(), "sent");
}

TEST(ItemName, LetsTheSameTypeThroughAlsoToAnEndOfAnyDesign) { expect_to_receive("long", 7L); }

TEST(ItemName, LetsARenamedTypeThroughWhereTheProgramGaveItOneName) {
    expect_to_receive("renamed", app::Happening{7});
}

TEST(ItemName, OfFramesIsNone) {
    EXPECT_EQ(detail::item_facts<Bytes>().size, 0U);
    test::Ends<Bytes, ring::design_2> ends{Options{.ring = {.capacity = 4096}}};
    const std::vector<std::byte> sent(10, std::byte{1});
    std::vector<std::byte> got;
    EXPECT_EQ(ends.producer().enqueue(sent, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(ends.consumer().dequeue(got, Deadline::after(40s)), Status::ok);
    EXPECT_EQ(got, sent);
}

}  // namespace
}  // namespace millrace::flow
