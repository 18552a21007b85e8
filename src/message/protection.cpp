// What keeps clients apart, see the header.
#include "protection.hpp"

#include <utility>

#include <fmt/format.h>

#include "millrace/base/error.hpp"

namespace millrace::message {

using connect::Transport;

void check_protection(const ServerOptions& options) {
    const auto for_trusted = [](std::string what, std::string why, std::string remedy) {
        throw base::Error{base::ErrorCode::invalid_argument, "make a message server",
                          std::move(what), std::move(why), std::move(remedy)};
    };
    const bool is_trusted = options.protection == Protection::trusted;
    const std::string remedy =
        "say that the program trusts its clients (Protection::trusted), or leave that out";
    if (options.tuning.receives == Receives::shared && !is_trusted) {
        for_trusted("receives that all clients share",
                    "a client that sends more than its share leaves the others without", remedy);
    }
    const bool is_shared =
        options.polling == Polling::shared && options.transports.has(Transport::rc);
    if (is_shared && !is_trusted) {
        for_trusted("a buffer that all clients write into",
                    "each of them can read the others' requests there, and damage them", remedy);
    }
    if (is_shared && options.admission.own_domains) {
        for_trusted("a buffer that all clients write into, and a protection domain for each",
                    "such a buffer is of one domain", "leave one of the two out");
    }
    if (options.transports.has(Transport::ud) && !is_trusted) {
        for_trusted("clients by ud",
                    "their packets come to one queue pair, where a client can take the receives of "
                    "the others",
                    remedy);
    }
    if (options.tuning.receives == Receives::shared && options.admission.own_domains) {
        for_trusted("receives that all clients share, and a protection domain for each",
                    "such receives are of one domain", "leave one of the two out");
    }
}

std::string explain_protection(const ServerOptions& options, Polling polling) {
    const bool is_shared =
        options.polling == Polling::shared && options.transports.has(Transport::rc);
    const bool has_rings = options.transports.has(Transport::rc) && !is_shared;
    const bool is_dense = polling == Polling::dense && has_rings;
    std::string text =
        fmt::format("protection: {}, as {}. ", name_of(options.protection),
                    options.protection == Protection::trusted ? "the program trusts its clients"
                                                              : "a server does unless it is asked");
    if (options.admission.own_domains && !has_rings) {
        text +=
            "Each client's queue pair has a protection domain of its own, and reaches nothing "
            "of the others'";
    } else if (options.admission.own_domains) {
        text += fmt::format(
            "Each client has a protection domain of its own, in which its ring{} registered, and "
            "no other client's: a WRITE elsewhere ends the connection of who tries it",
            is_dense ? " and its byte are" : " is");
    } else {
        text += fmt::format(
            "All are of one protection domain, where a key is valid for each of them{}{}",
            has_rings ? ". A ring's frames bear a secret of its connection" : "",
            is_dense ? "; all can write the array of bytes, which are hints: a foreign one costs a "
                       "look"
                     : "");
    }
    if (is_shared) {
        text +=
            ". All write their requests into one buffer: what two writes have made of one is told "
            "by a checksum, and sent again, so one that is not to be trusted can read, forge and "
            "hold up those of all others";
    }
    return text;
}

}  // namespace millrace::message
