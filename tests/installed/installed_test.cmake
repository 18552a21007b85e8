# Installs the build tree BUILD below WORK, then does what its users do: builds and runs the project
# SOURCE against it, with CMake and with pkg-config, and the examples. Called by CTest.
foreach(variable BUILD SOURCE WORK GENERATOR CXX)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "${variable} is not set")
  endif()
endforeach()
get_filename_component(ROOT ${SOURCE}/../.. ABSOLUTE)
file(REMOVE_RECURSE ${WORK})
set(PREFIX ${WORK}/prefix)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
    ERROR_VARIABLE output TIMEOUT 240)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN} failed (${status}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()
function(expect text)
  if(NOT output MATCHES "${text}")
    message(FATAL_ERROR "'${text}' is missing in:\n${output}")
  endif()
endfunction()
function(refuse text)
  if(output MATCHES "${text}")
    message(FATAL_ERROR "'${text}' should not be in:\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX})
run(${PREFIX}/bin/millrace devices)

# With CMake: the floors, and the one library, shared and static. Whether it compiles, links and runs
# is asked, which takes half as long without optimisation.
set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${PREFIX}
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0)
find_program(CCACHE ccache)
if(CCACHE)
  list(APPEND configure -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE} -DCMAKE_C_COMPILER_LAUNCHER=${CCACHE})
endif()
run(${configure} -S ${SOURCE} -B ${WORK}/build)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/uses_floors)
run(${WORK}/build/uses_shared)
run(${WORK}/build/uses_static)

# The shared library alone, where fmt and spdlog are not installed.
run(${configure} -S ${ROOT}/examples -B ${WORK}/examples
  -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_spdlog=ON)
run(${CMAKE_COMMAND} --build ${WORK}/examples)
set(ENV{MILLRACE_DEVICE} soft0)
run(${WORK}/examples/log_lines)
expect("^soft0: |\nsoft0: ")
run(sh -c "\"$1\" listen \"$2\" & \"$1\" \"$2\" hello there && wait $!" sh
  ${WORK}/examples/echo unix:${WORK}/echo)
expect("^hello\nthere\n$")
run(sh -c "\"$1\" \"$3\" 2 & \"$2\" \"$3\" hello there && \"$2\" \"$3\" goodbye && wait $!" sh
  ${WORK}/examples/echo_many ${WORK}/examples/echo unix:${WORK}/many)
expect("^hello\nthere\ngoodbye\n$")
run(sh -c "\"$1\" listen \"$2\" & echo straight away | \"$1\" \"$2\" && wait $!" sh
  ${WORK}/examples/stream_copy unix:${WORK}/copy)
expect("^straight away\n$")
run(sh -c "\"$1\" listen \"$2\" & echo said in C | \"$1\" \"$2\" && wait $!" sh
  ${WORK}/examples/exs_copy unix:${WORK}/exs)
expect("^said in C\n$")
run(sh -c "\"$1\" \"$3\" 2 & \"$2\" \"$3\" one two & \"$2\" \"$3\" three four && wait" sh
  ${WORK}/examples/log_server ${WORK}/examples/log_client unix:${WORK}/log)
expect("one\ntwo\n")
expect("three\nfour\n")
run(sh -c "\"$1\" \"$3\" 4 & \"$2\" \"$3\" one two & \"$2\" \"$3\" three four && wait" sh
  ${WORK}/examples/message_server ${WORK}/examples/message_client unix:${WORK}/words)
expect("ONE\nTWO\n")
expect("THREE\nFOUR\n")
run(sh -c "\"$1\" \"$3\" 2 & \"$2\" \"$3\" 1 100 && ! \"$2\" \"$3\" 1 2000000 2>&1 && wait $!" sh
  ${WORK}/examples/rpc_server ${WORK}/examples/rpc_client unix:${WORK}/primes)
expect("25 primes, the largest is 97\nthat takes too long\n")
foreach(loop epoll_loop coroutine_loop)
  run(sh -c "\"$1\" \"$3\" 0 & \"$2\" \"$3\" - && wait $!" sh
    ${WORK}/examples/${loop} ${WORK}/examples/pipeline unix:${WORK}/numbers)
  expect("in the end 500500, closed\n$")
  # Its producer is killed before it has said all: it ends, and says so.
  run(sh -c "\"$1\" \"$3\" 0 & \"$2\" \"$3\" || ! wait $!" sh
    ${WORK}/examples/${loop} ${WORK}/build/is_killed unix:${WORK}/numbers)
  expect("in the end 6, peer_lost\n$")
endforeach()
run(sh -c "\"$1\" - \"$3\" & \"$1\" \"$2\" \"$3\" & \"$1\" \"$2\" - && wait" sh
  ${WORK}/examples/pipeline unix:${WORK}/a unix:${WORK}/b)
expect("^333833500\n$")
file(WRITE ${WORK}/one.txt "to be or not to be\n")
file(WRITE ${WORK}/two.txt "not to know\n")
# Each counter prints its own words; together they are these, in some order.
run(sh -c "( \"$1\" count 2 \"$2\" & \"$1\" count 2 \"$3\" & \"$1\" read \"$4\" \"$2\" \"$3\" && \"$1\" read \"$5\" \"$2\" \"$3\" && wait ) | sort -k2" sh
  ${WORK}/examples/word_count unix:${WORK}/first unix:${WORK}/second ${WORK}/one.txt
  ${WORK}/two.txt)
expect("^2 be\n1 know\n2 not\n1 or\n3 to\n$")
# Each joiner has its part of the 100 dear articles; both sources send all of it.
run(sh -c "( \"$1\" join \"$2\" & \"$1\" join \"$3\" & \"$1\" scan \"$2\" \"$3\" & \"$1\" scan \"$2\" \"$3\" && wait ) | awk '{ articles += $1 } { sold += $5 } END { print articles, sold }'" sh
  ${WORK}/examples/hash_join unix:${WORK}/join_a unix:${WORK}/join_b)
expect("^100 1899000\n$")
# Two programs measure three sensors: one at a level of 1, one at 2.
run(sh -c "\"$1\" collect 2 \"$2\" & \"$1\" measure \"$2\" 1 & \"$1\" measure \"$2\" 2 && wait" sh
  ${WORK}/examples/metrics unix:${WORK}/metrics)
expect("from -5 s, sensor 0: 1000 values, mean 1.50\nfrom -5 s, sensor 1:")
expect("from 50 s, sensor 2: 2000 values, mean 3.50\n")
run(sh -c "\"$1\" show \"$2\" & \"$1\" feed \"$2\" && wait" sh
  ${WORK}/examples/prices unix:${WORK}/prices)
expect("0: 300 cents at 100000\n")
expect("4: 299 cents at 99999\n")
run(sh -c "\"$1\" listen \"$2\" & \"$1\" \"$2\" close && wait $!" sh
  ${WORK}/examples/why_gone unix:${WORK}/why)
expect("^it closed\n$")
run(sh -c "\"$1\" listen \"$2\" & \"$1\" \"$2\" abort || wait $!" sh
  ${WORK}/examples/why_gone unix:${WORK}/why)
expect("lost: ")

# With pkg-config, and no other package's header but libibverbs'.
set(ENV{PKG_CONFIG_PATH} ${PREFIX}/lib/pkgconfig)
run(sh -c "exec \"$1\" -std=c++20 -c \"$2\" -o \"$3\" $(pkg-config --cflags millrace)" sh
  ${CXX} ${SOURCE}/main.cpp ${WORK}/with_pkg_config.o)
run(sh -c "exec \"$1\" \"$2\" -o \"$3\" $(pkg-config --libs millrace)" sh
  ${CXX} ${WORK}/with_pkg_config.o ${WORK}/with_pkg_config)
set(ENV{LD_LIBRARY_PATH} ${PREFIX}/lib)
run(${WORK}/with_pkg_config)
run(sh -c "exec \"$1\" -static-libstdc++ \"$2\" -o \"$3\" \
-L\"$4\"/lib -l:libmillrace.a $(pkg-config --static --libs-only-l millrace | sed 's/-lmillrace//')" sh
  ${CXX} ${WORK}/with_pkg_config.o ${WORK}/with_pkg_config_static ${PREFIX})
run(${WORK}/with_pkg_config_static)

# Public headers need no package but libibverbs'.
execute_process(COMMAND grep -rlE "include <(fmt|spdlog)" ${PREFIX}/include OUTPUT_VARIABLE output)
refuse("hpp")

# libmillrace.so has a version in its name, and keeps to itself what it brings for itself.
run(readelf -d ${PREFIX}/lib/libmillrace.so)
expect("SONAME.*libmillrace\\.so\\.0\\.1\\]")
run(sh -c "nm -DC --defined-only \"$1\" | grep -vE ' millrace::| for millrace::| T exs_' || true" sh
  ${PREFIX}/lib/libmillrace.so)
if(NOT output STREQUAL "")
  message(FATAL_ERROR "libmillrace.so shows what is not Millrace's:\n${output}")
endif()

# Man pages and completions are installed.
foreach(file man/man1/millrace.1 man/man1/millrace-soft-run.1 bash-completion/completions/millrace
    zsh/site-functions/_millrace fish/vendor_completions.d/millrace.fish)
  if(NOT EXISTS ${PREFIX}/share/${file})
    message(FATAL_ERROR "share/${file} is not installed")
  endif()
endforeach()

# A build without a type is Release.
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${ROOT} -B ${WORK}/untyped -DCMAKE_CXX_COMPILER=${CXX}
  -DMILLRACE_BUILD_TOOLS=OFF -DMILLRACE_BUILD_TESTS=OFF)
file(STRINGS ${WORK}/untyped/CMakeCache.txt output REGEX "^CMAKE_BUILD_TYPE:")
expect("=Release")

# So is Millrace as a part of a project that names none, which is left as it is.
file(WRITE ${WORK}/around/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(around LANGUAGES CXX)
add_subdirectory(${ROOT} millrace)
add_executable(around ${SOURCE}/main.cpp)
target_link_libraries(around PRIVATE millrace::millrace)
")
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${WORK}/around -B ${WORK}/around/build
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
run(grep -E "command.* -c [^ ]*/millrace_base.dir/[^ ]*.cxx" ${WORK}/around/build/compile_commands.json)
expect(" -O3 ")
run(grep -E "command.* -c [^ ]*/installed/main.cpp" ${WORK}/around/build/compile_commands.json)
refuse(" -O")
# It writes into its own folder there, now and when it is built.
file(GLOB output RELATIVE ${WORK}/around/build ${WORK}/around/build/*)
list(REMOVE_ITEM output CMakeCache.txt CMakeFiles Makefile build.ninja cmake_install.cmake
  compile_commands.json millrace)
if(output)
  message(FATAL_ERROR "Millrace has written into the build of the project around it: ${output}")
endif()
if(EXISTS ${WORK}/around/build/build.ninja)
  run(sh -c "grep -E '^build (bin|lib|share)/' \"$1\" || true" sh ${WORK}/around/build/build.ninja)
  refuse("build ")
endif()

# Public headers say in one line that they need C++20.
file(WRITE ${WORK}/old.cpp "#include <millrace/flow/producer.hpp>\n")
execute_process(COMMAND ${CXX} -std=c++17 -fsyntax-only -fmax-errors=1 -I${PREFIX}/include
  ${WORK}/old.cpp ERROR_VARIABLE output RESULT_VARIABLE status)
if(status EQUAL 0)
  message(FATAL_ERROR "C++17 was accepted")
endif()
expect("Millrace needs C\\+\\+20")
