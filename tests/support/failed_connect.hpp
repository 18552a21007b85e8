// What a connector that does not connect says. Used by the tests of every kind of connector.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "millrace/base/deadline.hpp"
#include "millrace/base/error.hpp"

namespace millrace::test {

/// Of the Error that `connector.wait(deadline)` throws; its text goes to `text`.
template <class Connector>
base::ErrorCode code_of_failure(Connector& connector, const base::Deadline& deadline,
                                std::string& text) {
    try {
        (void)connector.wait(deadline);
    } catch (const base::Error& error) {
        text = error.what();
        return error.code();
    }
    ADD_FAILURE() << "it connected";
    return base::ErrorCode::system;
}

}  // namespace millrace::test
