// The points of a run of a study, kept in a file as they are measured, so that one which is
// interrupted can be gone on with (`--resume`). Used by study.cpp and run_flow.cpp.
//
//   {"study": "rpc", "repeats": 3, …}                what must be the same, to go on with it
//   {"point": "fast, 5, WriteWrite, 64 B, 8", "values": [359.1, 355.0, 361.2]}
//   …
//
// A line is written whole, when its point has all of its runs; a last line that a death has torn is
// left out. The file goes when the run is over.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

namespace millrace::bench {

class KeptPoints {
  public:
    struct Options {
        std::string study{};        ///< "rpc", for messages
        std::string path{};         ///< empty: nothing is kept
        nlohmann::json settings{};  ///< an object: what must be the same, to go on
        bool resumes = false;
    };
    /// Goes on, or begins. Throws Error where it is to go on and cannot: not_found (nothing is kept
    /// there), invalid_argument (with other settings), permission (another run keeps its points
    /// there). A run that begins is none the worse for a file that cannot be had: a line on
    /// standard error says that its points are not kept.
    explicit KeptPoints(Options options);
    KeptPoints(const KeptPoints&) = delete;
    KeptPoints& operator=(const KeptPoints&) = delete;
    /// Leaves the file for a run that goes on.
    ~KeptPoints();

    /// Of the run that is gone on with; null: not measured.
    [[nodiscard]] const nlohmann::json* find(const std::string& point) const;
    /// What an interrupted run had is dropped with the first one of another.
    void add(const std::string& point, const nlohmann::json& values);
    /// All is measured: removes the file.
    void over() noexcept;

  private:
    struct Closer {
        void operator()(std::FILE* file) const noexcept { (void)std::fclose(file); }
    };
    void read();
    void write(const nlohmann::json& line);

    Options options_;
    std::unique_ptr<std::FILE, Closer> file_;
    bool is_of_this_run_ = false;
    std::map<std::string, nlohmann::json> found_;
};

/// The processor and how many cores of it: on another machine no run is gone on with.
[[nodiscard]] std::string machine_of_points();
/// Where `millrace bench NAME` keeps them: $XDG_CACHE_HOME/millrace/bench-NAME.points, else in
/// ~/.cache; empty, if neither that nor HOME is set.
[[nodiscard]] std::string points_file(const std::string& study);

}  // namespace millrace::bench
