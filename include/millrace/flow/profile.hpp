// What the points of the design space were measured to do on a device, for choose() (advice.hpp).
// `millrace tune` measures them, and writes a profile into the user's cache:
//
//   $XDG_CACHE_HOME/millrace/flow-soft0-fast.json           (else ~/.cache/millrace/…)
//
//     const flow::Profile profile = flow::Profile::load();     // of the device in use
//     const flow::Advice advice = flow::choose(wanted, profile);
//
// A profile is JSON: what it is and of which version, the device and the machine, and a line for
// each point that was measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/error.hpp"
#include "millrace/base/language.hpp"
#include "millrace/flow/requirements.hpp"
#include "millrace/ring/design_name.hpp"

namespace millrace::flow {

/// What is asked of a queue.
struct Load {
    std::size_t item_bytes = 64;
    std::uint32_t burst = 0;  ///< as Requirements::burst
    bool producer_is_busy = false;
    bool consumer_is_busy = false;

    friend bool operator==(const Load&, const Load&) = default;
};

/// The load of the queues that these requirements come to. An item that is to be there soon while
/// items never stop is looked at as one that comes alone; a burst that no ring holds never stops.
[[nodiscard]] Load load_of(const Requirements& wanted) noexcept;

/// One measured point.
struct ProfileLine {
    Load load{};
    ring::NamedDesign design{};
    /// Items a second while they never stop; of bursts, nanoseconds from the first enqueue until
    /// the last item was taken.
    double figure = 0;

    friend bool operator==(const ProfileLine&, const ProfileLine&) = default;
};

/// Where a profile was measured.
struct ProfileOrigin {
    std::string device{};    ///< "soft0", "mlx5_0"
    std::string mode{};      ///< of the soft device: "fast", "shaped:10g,latency=1us"; else empty
    bool is_stored = false;  ///< items were stored, not posted: between processes of one host
    std::string machine{};   ///< "AMD EPYC, 2 cores"
    std::string date{};      ///< "2026-11-28T17:05:00Z"

    friend bool operator==(const ProfileOrigin&, const ProfileOrigin&) = default;
};

/// Immutable; any number of threads.
class Profile {
  public:
    /// Of the format. A file of another version is refused.
    static constexpr std::uint32_t version = 1;

    /// Throws Error (invalid_argument): there is no line, or one that no measurement gives.
    Profile(ProfileOrigin origin, std::vector<ProfileLine> lines);

    /// The profile of the device that MILLRACE_DEVICE and MILLRACE_SOFT_MODE choose, which
    /// default_path() names. Throws Error: not_found, there is none; and as load(path). A profile
    /// of another machine (a home that several hosts share), or of another device, is refused:
    /// invalid_argument.
    [[nodiscard]] static Profile load();
    /// Any profile, wherever it was measured. Throws Error: not_found; system, the file cannot be
    /// read; version_mismatch; invalid_argument, it is damaged or no profile, and where.
    [[nodiscard]] static Profile load(const std::string& path);
    /// As load(path); `name` stands in errors.
    [[nodiscard]] static Profile parse(std::string_view text, const std::string& name);

    [[nodiscard]] std::string text() const;
    /// In place of what `path` held, whole or not at all; makes its folder. Throws Error.
    void save(const std::string& path) const;

    [[nodiscard]] const ProfileOrigin& origin() const noexcept { return origin_; }
    [[nodiscard]] std::span<const ProfileLine> lines() const noexcept { return lines_; }

    /// Where a profile of that device lies, by XDG_CACHE_HOME, else HOME. Throws Error (not_found)
    /// where neither is set.
    [[nodiscard]] static std::string default_path(const std::string& device,
                                                  const std::string& mode);
    /// Of this host, as an origin has it.
    [[nodiscard]] static std::string this_machine();

  private:
    ProfileOrigin origin_;
    std::vector<ProfileLine> lines_;
};

/// A profile's answer: the point, and why.
struct PointChoice {
    ring::NamedDesign design{};
    std::string reason{};
};

/// The best point for that load among those measured, between sizes and bursts as logarithms have
/// it; of points within 5 % of the best, `usual` if it is one, else the simplest. `spare_core`:
/// points with a data mover, too. Without a reason: the profile knows no such load.
[[nodiscard]] PointChoice choose_point(const Profile& profile, const Load& load, bool spare_core,
                                       ring::Design usual = ring::design_2);

}  // namespace millrace::flow
