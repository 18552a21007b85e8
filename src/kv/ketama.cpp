#include "millrace/kv/ketama.hpp"

#include <nettle/md5.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include <fmt/format.h>

namespace millrace::kv {
namespace {

using Digest = std::array<std::uint8_t, MD5_DIGEST_SIZE>;

Digest md5_of(std::span<const std::byte> bytes) noexcept {
    Digest digest;
    md5_ctx context;
    md5_init(&context);
    md5_update(&context, bytes.size(), reinterpret_cast<const std::uint8_t*>(bytes.data()));
    md5_digest(&context, digest.size(), digest.data());
    return digest;
}

/// One of the four numbers that a digest is.
std::uint32_t number_in(const Digest& digest, std::size_t which) noexcept {
    const std::uint8_t* const at = digest.data() + 4 * which;
    return std::uint32_t{at[3]} << 24 | std::uint32_t{at[2]} << 16 | std::uint32_t{at[1]} << 8 |
           at[0];
}

constexpr std::size_t numbers = 4;

/// Digests for each of so many servers: 40, or 39 where libmemcached's floats come out below, which
/// they do for some numbers of servers.
std::size_t digests_of_each(std::size_t servers) noexcept {
    constexpr float points = 160;
    const float part = 1.0F / static_cast<float>(servers);
    const float each = part * points / 4 * static_cast<float>(servers);
    return static_cast<std::size_t>(std::floor(static_cast<double>(each) + 0.0000000001));
}

[[noreturn]] void refuse_names(std::string what, std::string why, std::string remedy) {
    throw base::Error{base::ErrorCode::invalid_argument, "spread keys over servers",
                      std::move(what), std::move(why), std::move(remedy)};
}

void check_names(const std::vector<std::string>& names) {
    constexpr std::size_t most = 65'536;
    if (names.empty() || names.size() > most) {
        refuse_names(fmt::format("of which there are {}", names.size()),
                     fmt::format("there are from 1 to {}", most), "name them all, each once");
    }
    std::set<std::string_view> known;
    for (const std::string& name : names) {
        if (name.empty()) refuse_names("one without a name", "points come from names", "name it");
        if (!known.insert(name).second) {
            refuse_names(name, "two have that name, and with it the same points",
                         "name each server once");
        }
    }
}

}  // namespace

Ketama::Ketama(const std::vector<std::string>& names) : servers_{names.size()} {
    check_names(names);
    const std::size_t digests = digests_of_each(names.size());
    points_.reserve(names.size() * digests * numbers);
    for (std::uint32_t server = 0; server < names.size(); ++server) {
        std::string_view name = names[server];
        constexpr std::string_view usual_port = ":11211";
        if (name.ends_with(usual_port)) name.remove_suffix(usual_port.size());
        for (std::size_t i = 0; i < digests; ++i) {
            const std::string text = fmt::format("{}-{}", name, i);
            const Digest digest = md5_of(std::as_bytes(std::span{text}));
            for (std::size_t which = 0; which < numbers; ++which) {
                points_.push_back({number_in(digest, which), server});
            }
        }
    }
    std::ranges::stable_sort(points_, {}, &Point::value);
}

std::size_t Ketama::server_of(std::span<const std::byte> key) const noexcept {
    if (servers_ == 1) return 0;
    const std::uint32_t hash = number_in(md5_of(key), 0);
    const auto at = std::ranges::lower_bound(points_, hash, {}, &Point::value);
    // After the last point comes the first.
    return at == points_.end() ? points_.front().server : at->server;
}

}  // namespace millrace::kv
