#include "millrace/rpc/client.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace millrace::rpc {

using base::Status;

namespace detail {

Path connect_path(const connect::Address& address, ClientOptions& options,
                  std::size_t response_bytes, const base::Deadline& deadline, Choice& chosen) {
    message::ClientOptions& messages = options.messages;
    if (messages.requests != Transfer::write || messages.answers != Transfer::write) {
        throw base::Error{base::ErrorCode::invalid_argument, "make an rpc client",
                          "ClientOptions::messages", "it says how requests and answers travel",
                          "say that by ClientOptions::design"};
    }
    const bool is_by_rc = messages.transport == connect::Transport::rc;
    std::vector<Choice> choices;
    if (const auto* const design = std::get_if<Design>(&options.design)) {
        choices.push_back({*design, "as the program chose"});
    } else if (!is_by_rc) {
        choices.push_back({Design{}, fmt::format("by {} there is nothing to choose",
                                                 name_of(messages.transport))});
    } else {
        Automatic load = std::get<Automatic>(options.design);
        if (load.response_bytes == 0)
            load.response_bytes = std::max<std::size_t>(response_bytes, 64);
        if (messages.endpoint == nullptr) messages.endpoint = connect::Endpoint::shared();
        const Profile& profile =
            options.profile != nullptr ? *options.profile : Profile::built_in();
        // A dispatcher offers no session that resumes.
        choices = profile.choose(device_kind(*messages.endpoint), load,
                                 options.dispatcher != nullptr && !messages.resumes);
    }
    std::string refused;
    for (std::size_t i = 0;; ++i) {
        chosen = choices[i];
        chosen.why += refused;
        const Design design = chosen.design;
        if (design.connection == Connection::dispatcher && options.dispatcher == nullptr) {
            throw base::Error{base::ErrorCode::invalid_argument, "make an rpc client",
                              fmt::format("design {}", to_string(design)), "there is no dispatcher",
                              "name one in ClientOptions::dispatcher"};
        }
        message::ClientOptions said = messages;
        said.requests = design.request;
        said.answers = design.response;
        said.tuning.large.keeps_order = true;
        said.tuning.service = server_service;
        try {
            if (design.connection == Connection::dispatcher) {
                return Path{options.dispatcher, address, said, deadline};
            }
            return Path{message::Client::connect(address, std::move(said), deadline)};
        } catch (const base::Error& error) {
            // What the server does not allow is not for a choice of our own.
            if (error.code() != base::ErrorCode::refused || i + 1 == choices.size()) throw;
            refused += fmt::format("; {} was refused: {}", to_string(design), error.cause());
        }
    }
}

}  // namespace detail

// --- Client

Client::Client(std::unique_ptr<detail::ClientCore> core) noexcept : core_{std::move(core)} {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

Client Client::connect_to(const connect::Address& address, ClientOptions options,
                          const base::Deadline& deadline, std::size_t response_bytes) {
    Choice chosen;
    detail::Path path = detail::connect_path(address, options, response_bytes, deadline, chosen);
    Client client{std::make_unique<detail::ClientCore>(std::move(path), std::move(options),
                                                       std::move(chosen))};
    client.core_->read_table(deadline);
    return client;
}

Code Client::ended(message::Outcome outcome, bool is_sent) noexcept {
    if (is_sent || outcome == message::Outcome::too_large ||
        outcome == message::Outcome::cancelled) {
        return code_of(outcome);
    }
    return outcome == message::Outcome::timed_out ? Code::late : Code::not_sent;
}

Status Client::poll() { return core_->poll(); }
Status Client::wait(const base::Deadline& deadline) { return core_->wait(deadline); }
bool Client::cancel(std::uint64_t id) { return core_->cancel(id); }
std::size_t Client::outstanding() const noexcept { return core_->outstanding(); }
Status Client::reconnect(const base::Deadline& deadline) { return core_->reconnect(deadline); }
Status Client::close(const base::Deadline& deadline) { return core_->close(deadline); }
void Client::adopt() noexcept { core_->adopt(); }

int Client::descriptor() {
    core_->check_thread();
    return core_->messages().descriptor();
}

std::vector<ProcedureReport> Client::procedures(const base::Deadline& deadline) {
    core_->check_thread();
    return core_->ask(true, deadline);
}

ClientStats Client::stats() const noexcept { return core_->stats(); }
std::string Client::explain() const { return core_->explain(); }
std::string Client::failure() const { return core_->failure(); }

}  // namespace millrace::rpc
