// Names of the ways that messages travel.
#include "millrace/message/transfer.hpp"

namespace millrace::message {

std::string_view name_of(Transfer transfer) noexcept {
    switch (transfer) {
        case Transfer::write: break;
        case Transfer::send: return "send";
        case Transfer::shared: return "shared";
    }
    return "write";
}

std::optional<Transfer> parse_transfer(std::string_view name) noexcept {
    for (const Transfer transfer : {Transfer::write, Transfer::send, Transfer::shared}) {
        if (name == name_of(transfer)) return transfer;
    }
    return std::nullopt;
}

std::string_view name_of(Protection protection) noexcept {
    return protection == Protection::trusted ? "trusted" : "domains";
}

std::string_view name_of(Receives receives) noexcept {
    return receives == Receives::shared ? "shared" : "own";
}

}  // namespace millrace::message
