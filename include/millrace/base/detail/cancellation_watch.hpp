// Being told of a cancellation by an executor: what suspended coroutines need, which sleep in no
// wait of their own. An epoll takes a descriptor once; so those that wait for one cancellation in
// one executor share a registration there, which goes with the last of them.
#pragma once

#include <functional>
#include <memory>

#include "millrace/base/cancellation.hpp"
#include "millrace/base/error.hpp"
#include "millrace/base/executor.hpp"

namespace millrace::base {

/// One waits, in the executor's thread. Destroying it ends that.
class CancellationWatch {
  public:
    CancellationWatch() noexcept = default;
    CancellationWatch(const CancellationWatch&) = delete;
    CancellationWatch& operator=(const CancellationWatch&) = delete;
    ~CancellationWatch() { end(); }

    /// From now on `told` is called once, behind the request, in the executor's thread; it may
    /// destroy this. False: there is no descriptor for that, look by the clock. Throws Error as
    /// Executor::add, and std::bad_alloc.
    [[nodiscard]] bool begin(Executor& executor, const Cancellation& cancellation,
                             std::function<void()> told);
    void end() noexcept;

  private:
    class Shared;
    std::shared_ptr<Shared> shared_;  ///< null: it does not wait
    std::function<void()> told_;
    CancellationWatch* before_ = nullptr;  ///< among those that share it
    CancellationWatch* behind_ = nullptr;
};

}  // namespace millrace::base
