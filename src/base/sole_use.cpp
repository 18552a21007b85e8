// The error of a second thread, see the header.
#include "millrace/base/detail/sole_use.hpp"

#include <utility>

namespace millrace::base {

void refuse_second_thread(const char* attempted, std::string object, const char* remedy) {
    throw Error{ErrorCode::invalid_argument, attempted, std::move(object),
                "a call of another thread is under way in it", remedy};
}

}  // namespace millrace::base
