// See ../any_ends.hpp.
#include "flow/any_ends.hpp"

namespace millrace::flow {

template class AnyProducer<Bytes>;
template class AnyConsumer<Bytes>;

}  // namespace millrace::flow
