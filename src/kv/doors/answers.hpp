// Answers as they are written, up to a limit. Each door has a writer of its own made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::kv {

class Answers {
  public:
    /// Appends to `out`, up to `most` bytes in all: what is beyond is left out, and is_full() says
    /// so for good.
    Answers(std::string& out, std::size_t most) noexcept : out_{&out}, most_{most} {}

    void limit(std::size_t most) noexcept { most_ = most; }
    [[nodiscard]] bool is_full() const noexcept { return is_full_; }
    /// What there is to say does not fit.
    void give_up() noexcept { is_full_ = true; }
    /// That have been written since it was made.
    [[nodiscard]] std::uint64_t errors() const noexcept { return errors_; }
    /// What was written by another writer, or needs no form.
    void raw(std::string_view bytes) {
        if (!has_room(bytes.size())) [[unlikely]]
            return;
        out_->append(bytes);
    }

  protected:
    [[nodiscard]] bool has_room(std::size_t more) noexcept {
        if (out_->size() + more <= most_) [[likely]]
            return true;
        is_full_ = true;
        return false;
    }

    std::string* out_;
    std::uint64_t errors_ = 0;

  private:
    std::size_t most_;
    bool is_full_ = false;
};

}  // namespace millrace::kv
