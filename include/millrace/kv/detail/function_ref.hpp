// A callable by reference, for calls that return before it goes: no allocation. Used by the calls
// of kv that hand out what they find.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "millrace/base/language.hpp"

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
              auto& called = *static_cast<std::remove_reference_t<Callable>*>(of);
              if constexpr (std::is_void_v<Result>) {
                  static_cast<void>(called(std::forward<Arguments>(arguments)...));
              } else {
                  return called(std::forward<Arguments>(arguments)...);
              }
          }} {}
    Result operator()(Arguments... arguments) const {
        return call_(callable_, std::forward<Arguments>(arguments)...);
    }

  private:
    void* callable_;
    Result (*call_)(void*, Arguments...);
};

}  // namespace millrace::kv
