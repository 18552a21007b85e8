// The commands of the memcached door: one table, and what the text commands (memcached_text.cpp)
// and the meta commands (memcached_meta.cpp) share.
//
// An item's client flags, and what meta commands remember of it, are the item's note in the store
// (Store::set_until): the value is the same for all clients, whichever protocol they speak.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "doors/door_service.hpp"
#include "doors/door_session.hpp"
#include "doors/memcached_parser.hpp"
#include "doors/memcached_words.hpp"
#include "doors/memcached_writer.hpp"
#include "millrace/kv/store.hpp"

namespace millrace::kv {

struct MemcachedService : DoorService {
    using DoorService::DoorService;

    /// Removes all items if a delayed flush_all is due.
    void flush_if_due() noexcept;
    /// Of the clock's nanoseconds: when; 0: not at all.
    std::atomic<std::int64_t> flush_at{0};
    std::atomic<std::uint64_t> flushes{0};  ///< flush_all was asked for
};

/// One command of a client, while it is carried out.
struct MemcachedCall {
    MemcachedService& service;
    DoorSession& session;
    MemcachedWriter& out;
    const MemcachedRequest& request;
    std::string& scratch;   ///< its thread's: any content
    bool is_quiet = false;  ///< the client wants no answer

    [[nodiscard]] Store& store() const noexcept { return service.store; }
    [[nodiscard]] std::size_t words() const noexcept { return request.words.size(); }
    [[nodiscard]] std::string_view word(std::size_t index) const noexcept {
        return request.words[index];
    }
    void say(std::string_view text) {
        if (!is_quiet) out.line(text);
    }
    void fail(std::string_view text) { out.error(text, !is_quiet); }
    void wrong_line() { fail("CLIENT_ERROR bad command line format"); }
    /// The store has no memory for it.
    void no_memory() { fail("SERVER_ERROR out of memory storing object"); }
    /// Its last word may say that the client wants no answer.
    void take_noreply() noexcept { is_quiet = request.words.back() == "noreply"; }
};

/// Carries out what a client asked for, whatever it is.
void serve_memcached(MemcachedService& service, std::size_t thread, DoorSession& session,
                     MemcachedWriter& out, const MemcachedRequest& request, std::string& scratch);

namespace memcached {

/// What the door keeps with an item.
class Note {
  public:
    Note() = default;
    explicit Note(std::uint64_t bits) noexcept : bits_{bits} {}
    [[nodiscard]] static Note of_flags(std::uint32_t flags) noexcept { return Note{flags}; }

    [[nodiscard]] std::uint64_t bits() const noexcept { return bits_; }
    [[nodiscard]] std::uint32_t flags() const noexcept { return static_cast<std::uint32_t>(bits_); }
    /// A client said by md that its value is old.
    [[nodiscard]] bool is_stale() const noexcept { return (bits_ & stale) != 0; }
    /// A client was told that it is the one to make the value anew.
    [[nodiscard]] bool is_won() const noexcept { return (bits_ & won) != 0; }
    void set_stale(bool is_so) noexcept { set(stale, is_so); }
    void set_won(bool is_so) noexcept { set(won, is_so); }

  private:
    static constexpr std::uint64_t stale = std::uint64_t{1} << 32;
    static constexpr std::uint64_t won = std::uint64_t{1} << 33;
    void set(std::uint64_t bit, bool is_so) noexcept { bits_ = is_so ? bits_ | bit : bits_ & ~bit; }

    std::uint64_t bits_ = 0;
};

/// What set, add, … and ms want.
struct Storing {
    enum class How : std::uint8_t { set, add, replace, append, prepend, cas };
    How how = How::set;
    std::string_view key;
    std::string_view value;
    Time expires_at{};
    std::uint32_t flags = 0;
    std::uint64_t cas = 0;       ///< append and prepend: 0: any
    bool takes_old_cas = false;  ///< cas: an older one than the item's stores what is stale
};
struct Stored {
    enum class Code : std::uint8_t { stored, not_stored, exists, not_found, no_memory };
    Code code = Code::stored;
    Version version = 0;  ///< stored
};
[[nodiscard]] Stored store(MemcachedCall& call, const Storing& what);
/// What was too long, or found no memory, leaves no old value there.
void forget_item(MemcachedCall& call, std::string_view key) noexcept;

/// What becomes of a number.
struct Counting {
    std::string_view key;
    bool adds = true;
    std::uint64_t delta = 1;
    std::uint64_t cas = 0;                   ///< 0: any
    std::optional<std::uint64_t> initial{};  ///< where there is none
    Time initial_expires_at{};
    std::optional<Time> new_time{};
};
struct Counted {
    enum class Code : std::uint8_t { ok, made, not_found, exists, not_numeric, no_memory };
    Code code = Code::ok;
    std::uint64_t number = 0;
    Time former_time;  ///< when the item was over before
    Version version = 0;
};
[[nodiscard]] Counted count(MemcachedCall& call, const Counting& what);
inline constexpr std::string_view not_numeric =
    "CLIENT_ERROR cannot increment or decrement non-numeric value";
inline constexpr std::string_view too_large = "SERVER_ERROR object too large for cache";
inline constexpr std::string_view wrong_data = "CLIENT_ERROR bad data chunk";

// Text commands.
void get(MemcachedCall& call);
void gets(MemcachedCall& call);
void gat(MemcachedCall& call);
void gats(MemcachedCall& call);
void set(MemcachedCall& call);
void add(MemcachedCall& call);
void replace(MemcachedCall& call);
void append(MemcachedCall& call);
void prepend(MemcachedCall& call);
void cas(MemcachedCall& call);
void incr(MemcachedCall& call);
void decr(MemcachedCall& call);
void del(MemcachedCall& call);
void touch(MemcachedCall& call);
void flush_all(MemcachedCall& call);
void verbosity(MemcachedCall& call);
void version(MemcachedCall& call);
void quit(MemcachedCall& call);
// Meta commands.
void mg(MemcachedCall& call);
void ms(MemcachedCall& call);
void md(MemcachedCall& call);
void ma(MemcachedCall& call);
void me(MemcachedCall& call);
void mn(MemcachedCall& call);
// What the server has counted.
void stats(MemcachedCall& call);
/// Of a client that has to say the password first.
void log_in(MemcachedCall& call);

/// Whose commands these are, for clients that go by it.
inline constexpr std::string_view memcached_version = "1.6.18";

}  // namespace memcached
}  // namespace millrace::kv
