// The names of the ways that messages travel.
#include <gtest/gtest.h>

#include <optional>

#include "millrace/message/transfer.hpp"

namespace millrace::message {
namespace {

TEST(Transfer, IsFoundByItsNameAndByNoOther) {
    for (const Transfer transfer : {Transfer::write, Transfer::send}) {
        EXPECT_EQ(parse_transfer(name_of(transfer)), transfer);
    }
    EXPECT_EQ(parse_transfer("read"), std::nullopt);
    EXPECT_NE(name_of(Receives::own), name_of(Receives::shared));
}

}  // namespace
}  // namespace millrace::message
