# What a compiler says first of a procedure that carries what has no codec: what to do.
#
#     cmake -DCXX=g++ -DINCLUDE=include -DWORK=folder -P missing_codec.cmake
file(WRITE ${WORK}/missing_codec.cpp [[
#include <map>

#include "millrace/rpc/client.hpp"
#include "millrace/rpc/server.hpp"

using Table = std::map<int, int>;
struct Look {
    static constexpr std::string_view name = "look";
    using Request = Table;
    using Response = int;
};
struct Give {
    static constexpr std::string_view name = "give";
    using Request = int;
    using Response = Table;
};
struct Stream {
    static constexpr std::string_view name = "stream";
    using Request = int;
    using Part = Table;
};

using millrace::rpc::Client;
#if defined(CONNECTS)
Client made(const millrace::base::Deadline& deadline) {
    return Client::connect<PROCEDURE>({}, {}, deadline);
}
#elif defined(CALLS)
void made(Client& client, const millrace::base::Deadline& deadline) {
    (void)client.call<PROCEDURE>({}, deadline);
}
#elif defined(OPENS)
void made(Client& client, const millrace::base::Deadline& deadline) {
    (void)client.open<PROCEDURE>({}, deadline);
}
#elif defined(HANDLES)
void made(millrace::rpc::Server& server) {
    server.handle<PROCEDURE>([](const PROCEDURE::Request&) { return PROCEDURE::Response{}; });
}
#endif
]])

foreach(case "CONNECTS;Look" "CONNECTS;Give" "CONNECTS;Stream" "CALLS;Look" "CALLS;Give"
        "OPENS;Stream" "HANDLES;Look" "HANDLES;Give")
  list(GET case 0 use)
  list(GET case 1 procedure)
  execute_process(
    COMMAND ${CXX} -std=c++20 -fsyntax-only -I${INCLUDE} -D${use} -DPROCEDURE=${procedure}
      ${WORK}/missing_codec.cpp
    ERROR_VARIABLE said OUTPUT_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0)
    message(FATAL_ERROR "${use} ${procedure}: it compiles")
  endif()
  string(REGEX MATCH "[^\n]* error: [^\n]*" first "${said}")
  if(NOT first MATCHES "specialise rpc::Codec<T>")
    message(FATAL_ERROR "${use} ${procedure}: the first error is: ${first}\n${said}")
  endif()
endforeach()
