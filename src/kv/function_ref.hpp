// A callable by reference, for calls across the seam between engine and tables: no allocation.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace millrace::kv {

template <class Signature>
class FunctionRef;

template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
  public:
    template <class Callable>
        requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>)
    FunctionRef(Callable&& callable) noexcept  // NOLINT: converts, as std::function does
        : callable_{const_cast<void*>(static_cast<const void*>(std::addressof(callable)))},
          call_{[](void* of, Arguments... arguments) -> Result {
              return (*static_cast<std::remove_reference_t<Callable>*>(of))(
                  std::forward<Arguments>(arguments)...);
          }} {}
    Result operator()(Arguments... arguments) const {
        return call_(callable_, std::forward<Arguments>(arguments)...);
    }

  private:
    void* callable_;
    Result (*call_)(void*, Arguments...);
};

}  // namespace millrace::kv
