// What the designs of calls were measured to do, and the choice of one of them by that.
//
//   millrace bench rpc --profile my.profile         # measures, and writes one
//
//     options.design = rpc::Automatic{.clients = 8};
//     options.profile = std::make_shared<rpc::Profile>(rpc::Profile::load("my.profile"));
//
// A profile is a text: a line for each point, its words apart by spaces; '#' begins a comment.
//
//   device    bytes of a response   clients   design            calls a second   median ns   p99 ns
//   soft-fast 64                    8         write/write/own   2.9e+06          2700        4100
//
// Source: work 004, whose figures 3 to 10 these are points of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"
#include "millrace/rpc/design.hpp"

namespace millrace::connect {
class Endpoint;
}

namespace millrace::rpc {

/// One measured point: so many clients of one server, of one process, each with a call on its way.
struct ProfileLine {
    std::string device{};  ///< as device_kind() says it
    std::size_t response_bytes = 0;
    std::uint32_t clients = 1;
    Design design{};
    double calls_per_second = 0;  ///< of all together
    double median_ns = 0;
    double p99_ns = 0;
    friend bool operator==(const ProfileLine&, const ProfileLine&) = default;
};

/// What was chosen, and why, in words.
struct Choice {
    Design design{};
    std::string why{};
};

class Profile {
  public:
    Profile() = default;
    Profile(std::vector<ProfileLine> lines, std::string name)
        : lines_{std::move(lines)}, name_{std::move(name)} {}

    /// The one that this library was made with: soft device, modes fast and shaped, on the machine
    /// that its head names. Others are for `millrace bench rpc --profile`.
    [[nodiscard]] static const Profile& built_in();
    /// Throws Error (invalid_argument): a line that is none; its number is said.
    [[nodiscard]] static Profile parse(std::string_view text, std::string name);
    /// Throws Error as parse(), and invalid_argument where there is no line; system: the file
    /// cannot be read.
    [[nodiscard]] static Profile load(const std::string& path);

    /// As parse() reads it, with `head` for a comment.
    [[nodiscard]] std::string text(std::string_view head = {}) const;
    [[nodiscard]] std::span<const ProfileLine> lines() const noexcept { return lines_; }

    /// The designs by what the profile says of them, the best first, each with the line that says
    /// so; of those within 5 % of the best, the first of every_design. Of the points of this kind
    /// of device the nearest one counts, by size and clients in powers of two. Without
    /// `has_dispatcher` there are own connections alone. Where nothing was measured of the device:
    /// write/write by own connections, as work 004 recommends.
    [[nodiscard]] std::vector<Choice> choose(std::string_view device, const Automatic& load,
                                             bool has_dispatcher) const;

  private:
    std::vector<ProfileLine> lines_;
    std::string name_;
};

/// "soft-fast", "soft-shaped"; of others the name without its number: "rxe", "mlx".
[[nodiscard]] std::string device_kind(connect::Endpoint& endpoint);

}  // namespace millrace::rpc
