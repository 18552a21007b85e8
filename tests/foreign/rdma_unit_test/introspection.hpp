// What google/rdma-unit-test wants to know of a device before it tests it, for soft0. main.cpp
// registers it. Every answer is the device's own; nothing is skipped here: what the device does
// otherwise than the suite expects stands in scripts/rdma-unit-test-differences.list.
#pragma once
#include "internal/introspection_registrar.h"
#include "public/introspection.h"

#include <string>

namespace millrace::foreign {

class SoftIntrospection : public rdma_unit_test::NicIntrospection {
  public:
    using NicIntrospection::NicIntrospection;

    bool SupportsReRegMr() const override { return true; }

    // Fewer iterations: a few million requests are minutes on two processors.
    bool IsSlowNic() const override { return true; }

    // A request to a queue pair that is not in RTR yet waits, and arrives when it is.
    bool BuffersMessagesWhenNotReadyToReceive() const override { return true; }

    // A SEND that invalidates what it may not is answered with REM_ACCESS_ERR.
    bool NoNakOnSendInvalidateErrors() const override { return false; }
};

inline void register_soft_device() {
    rdma_unit_test::IntrospectionRegistrar::GetInstance().Register(
        "soft", [](const std::string& name, const ibv_device_attr& attributes) {
            return new SoftIntrospection(name, attributes);
        });
}

}  // namespace millrace::foreign
