// See ../any_ends.hpp.
#include "flow/any_ends.hpp"

namespace millrace::flow {

template class AnyProducer<test::Numbered>;
template class AnyConsumer<test::Numbered>;

}  // namespace millrace::flow
