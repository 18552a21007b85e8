#include "service.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace millrace::kv {
namespace {

std::string_view text(std::span<const std::byte> bytes) noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(std::string_view text) noexcept {
    return std::as_bytes(std::span{text.data(), text.size()});
}

/// The answer of a head and what is behind it. One that the client does not take is told it by the
/// session.
void answer(message::Request& request, const AnswerHead& head,
            std::span<const std::byte> rest = {}) {
    (void)request.answer(answer_head_bytes + rest.size(), [&](std::span<std::byte> room) {
        const std::uint64_t word = pack(head);
        std::memcpy(room.data(), &word, sizeof word);
        if (!rest.empty()) std::memcpy(room.data() + sizeof word, rest.data(), rest.size());
    });
}
void answer(message::Request& request, Code code, std::string_view why = {}) {
    answer(request, AnswerHead{code}, bytes_of(why));
}

Code code_of(Outcome outcome) noexcept {
    switch (outcome) {
        case Outcome::ok: return Code::ok;
        case Outcome::not_found:
        case Outcome::bad_key: return Code::key_error;
        case Outcome::conflict: return Code::conflict;
        case Outcome::full:
        case Outcome::bad_value: return Code::store_error;
    }
    return Code::store_error;
}

}  // namespace

void Service::operator()(message::Request& request) {
    const std::optional<RequestParts> parts = parse_request(request.payload());
    if (!parts) {
        answer(request, Code::parsing_error);
        return;
    }
    switch (static_cast<Command>(request.procedure())) {
        case Command::get: get(request, *parts); return;
        case Command::set: set(request, *parts); return;
        case Command::mget: get_several(request, *parts); return;
        case Command::del:
            answer(request, code_of(store_->erase(parts->key, parts->options.if_version)));
            return;
        case Command::exists:
            answer(request, store_->exists(parts->key) ? Code::ok : Code::key_error);
            return;
        case Command::ping: answer(request, AnswerHead{}, parts->value); return;
        case Command::stats: stats(request); return;
        case Command::setopt: set_option(request, *parts); return;
        case Command::dump:
            if (permitted_.dump) {
                dump(request, *parts);
                return;
            }
            break;
        case Command::rst:
            if (permitted_.reset) {
                store_->clear();
                answer(request, Code::ok);
                return;
            }
            break;
        case Command::exit:
            if (permitted_.exit) {
                answer(request, Code::ok);
                calls_.exit();
                return;
            }
            break;
        case Command::unknown:
        default: answer(request, Code::unknown_error); return;
    }
    answer(request, Code::denied, "the server was not started with the permission for it");
}

void Service::get(message::Request& request, const RequestParts& parts) {
    const Outcome outcome = store_->get(parts.key, [&](const Entry& entry) {
        answer(request, AnswerHead{Code::ok, entry.version}, entry.value);
    });
    if (outcome != Outcome::ok) answer(request, code_of(outcome));
}

void Service::get_several(message::Request& request, const RequestParts& parts) {
    const std::optional<MgetRequest> asked = parse_mget_request(parts.value);
    if (!asked) {
        answer(request, Code::parsing_error);
        return;
    }
    std::array<std::span<const std::byte>, most_keys> keys;
    std::span<const std::byte> rest = asked->keys;
    for (std::span<const std::byte>& key : std::span{keys}.first(asked->count)) {
        key = *next_of_keys(rest);
    }
    const std::size_t most = std::min(asked->bytes, most_mget_bytes);
    // Each value is copied once, to where the client reads it.
    (void)request.answer(answer_head_bytes + most, [&](std::span<std::byte> room) {
        const std::uint64_t head = pack(AnswerHead{});
        std::memcpy(room.data(), &head, sizeof head);
        std::byte* at = room.data() + sizeof head;
        // For values: the heads of all items have room.
        std::size_t left = most - asked->count * mget_item_head_bytes;
        const auto lay = [&](const MgetItem& item) {
            write(item, at);
            at += size_of(item);
        };
        const auto take = [&](std::size_t, Outcome outcome, const Entry& entry) {
            const bool is_left_out = entry.value.size() > left;
            if (!is_left_out) left -= entry.value.size();
            lay({.head = {code_of(outcome), entry.version},
                 .bytes = static_cast<std::uint32_t>(entry.value.size()),
                 .is_left_out = is_left_out,
                 .value = entry.value});
        };
        store_->get_several(std::span{keys}.first(asked->count), take);
        return static_cast<std::size_t>(at - room.data());
    });
}

void Service::set(message::Request& request, const RequestParts& parts) {
    const SetResult result = store_->set(parts.key, parts.value, parts.options);
    if (parts.options.expires_after && result.outcome == Outcome::ok) note_expiring();
    answer(request, AnswerHead{code_of(result.outcome), result.version});
}

void Service::note_expiring() {
    if (!has_expiring() && !has_expiring_.exchange(true, std::memory_order_acq_rel)) {
        calls_.first_expiring();
    }
}

void Service::set_option(message::Request& request, const RequestParts& parts) {
    if (text(parts.key) != "sweep") {
        answer(request, Code::setopt_error, "the options are: sweep");
        return;
    }
    std::size_t budget = 0;
    const std::string_view value = text(parts.value);
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), budget);
    if (error != std::errc{} || end != value.data() + value.size() || budget == 0 ||
        budget > 100'000'000) {
        answer(request, Code::setopt_error, "sweep: how many items a sweep looks at, 1 to 10^8");
        return;
    }
    sweep_budget_.store(budget, std::memory_order_relaxed);
    answer(request, Code::ok);
}

void Service::dump(message::Request& request, const RequestParts& parts) {
    const std::optional<DumpRequest> asked = parse_dump_request(parts.value);
    if (!asked) {
        answer(request, Code::parsing_error);
        return;
    }
    const std::size_t most = std::min(asked->bytes, dump_page_bytes);
    std::vector<std::byte> page(sizeof(Cursor));
    page.reserve(sizeof(Cursor) + most);
    const Cursor next = store_->visit_from(asked->from, [&](const Entry& entry) {
        const std::size_t bytes = dumped_head_bytes + entry.key.size() + entry.value.size();
        const std::size_t so_far = page.size() - sizeof(Cursor);
        if (so_far != 0 && so_far + bytes > most) return false;
        const std::uint64_t sizes = entry.key.size() | std::uint64_t{entry.value.size()} << 32;
        const auto put = [&page](const void* from, std::size_t count) {
            const auto* const first = static_cast<const std::byte*>(from);
            page.insert(page.end(), first, first + count);
        };
        put(&sizes, sizeof sizes);
        put(&entry.version, sizeof entry.version);
        put(entry.key.data(), entry.key.size());
        put(entry.value.data(), entry.value.size());
        return true;
    });
    std::memcpy(page.data(), &next, sizeof next);
    answer(request, AnswerHead{}, page);
}

void Service::stats(message::Request& request) {
    const StoreStats now = store_->stats();
    const std::string lines = fmt::format(
        "items {}\nitem_bytes {}\nmemory_bytes {}\nmemory_limit_bytes {}\ngets {}\nhits {}\n"
        "sets {}\nerased {}\nevicted {}\nexpired {}\nrefused {}\n{}",
        now.items, now.item_bytes, now.memory_bytes, store_->options().memory_bytes, now.gets,
        now.hits, now.sets, now.erased, now.evicted, now.expired, now.refused, calls_.stats());
    answer(request, AnswerHead{}, bytes_of(lines));
}

}  // namespace millrace::kv
