#include "millrace/verbs/thread_domain.hpp"

#include <cerrno>
#include <string>
#include <utility>

#include "millrace/base/log.hpp"
#include "millrace/verbs/device.hpp"
#include "parents_objects.hpp"

namespace millrace::verbs {
namespace {

[[noreturn]] void refuse_thread_domain(const char* attempted, const ibv_context& context) {
    const int error = errno;
    if (error == EOPNOTSUPP || error == ENOSYS) {
        throw base::Error{base::ErrorCode::unsupported, attempted, context.device->name,
                          "the device has no thread domains",
                          "use the protection domain itself: only locks come back"};
    }
    base::throw_errno(error != 0 ? error : EIO, attempted, context.device->name);
}

}  // namespace

ThreadDomain ThreadDomain::allocate(const Context& context) {
    errno = 0;
    ibv_td_init_attr nothing_else{};
    ibv_td* const made = ibv_alloc_td(context.raw(), &nothing_else);
    if (made == nullptr) refuse_thread_domain("allocate a thread domain", *context.raw());
    return ThreadDomain{made};
}

ThreadDomain::ThreadDomain(ThreadDomain&& other) noexcept
    : raw_{std::exchange(other.raw_, nullptr)} {}

ThreadDomain& ThreadDomain::operator=(ThreadDomain&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
}

ThreadDomain::~ThreadDomain() {
    if (raw_ == nullptr || is_parents(raw_->context)) return;
    if (const int error = ibv_dealloc_td(raw_); error != 0) {
        base::log(base::LogLevel::warn, "verbs",
                  "free a thread domain: {}; domains of it still exist",
                  base::describe_errno(error));
    }
}

ProtectionDomain ThreadDomain::domain_for(const ProtectionDomain& domain) const {
    ibv_parent_domain_init_attr wanted{};
    wanted.pd = domain.raw();
    wanted.td = raw_;
    errno = 0;
    ibv_pd* const made = ibv_alloc_parent_domain(raw_->context, &wanted);
    if (made == nullptr) {
        refuse_thread_domain("make a domain for queue pairs of one thread", *raw_->context);
    }
    return ProtectionDomain{made, domain.control_path(), domain.slabs_};
}

}  // namespace millrace::verbs
