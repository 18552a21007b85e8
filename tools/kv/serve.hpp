// `millrace kv serve`: the server, until it is interrupted or a client with permission ends it.
#pragma once

#include <string>

#include "millrace/kv/server.hpp"

namespace millrace::tools {

struct KvServeOptions {
    std::string address = "127.0.0.1:7400";
    std::string device{};         ///< empty: the default
    std::string secret_file{};    ///< empty: no secret
    std::string metrics{};        ///< where to show them; empty: nowhere
    std::string resp{};           ///< where Redis' clients come; empty: nowhere
    std::string memcached{};      ///< where memcached's clients come; empty: nowhere
    std::string snapshot{};       ///< file that the items come from and go to; empty: none
    double snapshot_every = 0;    ///< seconds between snapshots; 0: one at the end alone
    std::string password_file{};  ///< of these; empty: no password
    std::string tls_cert{};       ///< of the doors; empty: without TLS
    std::string tls_key{};
    kv::ServerOptions server{};
};

/// Exit status.
int run_kv_serve(const KvServeOptions& options);

}  // namespace millrace::tools
