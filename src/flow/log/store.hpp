// What a log keeps: its sequence, which name has acknowledged what, and since when it is the same
// log. Used by LogEnd and its sessions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "log/book.hpp"
#include "log/directory.hpp"
#include "log/history.hpp"
#include "log/subscription.hpp"
#include "millrace/base/status.hpp"
#include "millrace/flow/log_options.hpp"

namespace millrace::flow::detail {

class LogStore {
  public:
    /// Throws Error.
    LogStore(const LogShape& shape, const LogOptions& options, std::size_t head = 0);

    [[nodiscard]] LogHistory& history() noexcept { return history_; }
    [[nodiscard]] const LogHistory& history() const noexcept { return history_; }
    [[nodiscard]] const LogBook& book() const noexcept { return book_; }
    [[nodiscard]] const LogShape& shape() const noexcept { return shape_; }
    [[nodiscard]] LogEpoch epoch() const noexcept { return {sequence_, epoch_}; }
    [[nodiscard]] const LogDirectory* directory() const noexcept { return directory_.get(); }

    /// What requests are judged by.
    [[nodiscard]] LogView view() const noexcept;

    /// False: there is no room for one more name.
    [[nodiscard]] bool has_room_for(const std::string& name) const noexcept {
        return book_.acknowledged(name).has_value() ||
               book_.entries().size() < LogBook::most_consumers;
    }
    void acknowledge(const std::string& name, std::uint64_t position);
    void forget(const std::string& name) noexcept;
    void sync();

  private:
    void hold() noexcept;

    LogShape shape_;
    LogRetention retention_;
    std::unique_ptr<LogDirectory> directory_;
    LogHistory history_;
    std::uint64_t sequence_ = 0;
    std::uint32_t epoch_ = 0;
    std::array<std::uint64_t, 1> only_epoch_{};  ///< of one in memory
    LogBook book_;
};

}  // namespace millrace::flow::detail
