// The name of a type that linkers know, written out; see the header.
#include "millrace/base/type_name.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace millrace::base::detail {

TypeName written_out(const char* mangled) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text{
        abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free};
    return normalised(text != nullptr ? text.get() : mangled);
}

}  // namespace millrace::base::detail
