# Build options shared by every target, and the function that declares one floor of the house.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  if(PROJECT_IS_TOP_LEVEL)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
  else()
    set(CMAKE_BUILD_TYPE Release)  # in here; the project around it has none
  endif()
endif()
option(MILLRACE_WERROR "Treat warnings as errors (CI does)" OFF)
option(MILLRACE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(MILLRACE_BUILD_TOOLS "Build the millrace command and the benchmarks" ${PROJECT_IS_TOP_LEVEL})
set(MILLRACE_SANITIZE "" CACHE STRING "Sanitizers, comma separated: address,undefined or thread")
option(MILLRACE_FUZZ "Build the fuzzers of fuzz/ with clang's libFuzzer and sanitizers" OFF)
if(MILLRACE_FUZZ)
  set(MILLRACE_SANITIZE "address,undefined")
endif()

option(MILLRACE_BATCHES
  "Compile several files at once, in half the time; OFF shows which file forgets an include" ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(millrace_options INTERFACE)
target_compile_options(millrace_options INTERFACE
  -Wall -Wextra -Wpedantic -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast
  -Wdouble-promotion -Wformat=2 -fno-strict-aliasing)
if(MILLRACE_WERROR)
  target_compile_options(millrace_options INTERFACE -Werror)
endif()
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_options INTERFACE
    -fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()
if(MILLRACE_FUZZ)
  target_compile_options(millrace_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(MILLRACE_BATCHES)
  # What one file of a batch has at file scope is nothing to the next. Clang cannot be asked for
  # locals alone.
  target_compile_options(millrace_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
else()
  target_compile_options(millrace_options INTERFACE -Wshadow)
endif()
install(TARGETS millrace_options EXPORT millrace)

# millrace_in_batches(TARGET FILES): its sources are compiled FILES at a time, as most of a file's
# time is that of its headers. A name at file scope is one file's of the folder: where two have it,
# either both mean the same and a header should have it, or one should say more.
function(millrace_in_batches target files)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${MILLRACE_BATCHES} UNITY_BUILD_BATCH_SIZE ${files})
endfunction()

# millrace_floor(NAME LINK targets... [PRIVATE_LINK targets...])
# include/millrace/NAME is public, src/NAME private, with its rooms where it has some (src/NAME/ROOM);
# the target is millrace::NAME.
function(millrace_floor name)
  cmake_parse_arguments(ARG "" "" "LINK;PRIVATE_LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp
    ${PROJECT_SOURCE_DIR}/src/${name}/*/*.cpp)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/millrace/${name}/*.hpp)
  if(NOT sources)  # a floor of headers alone is still a library that others link
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/empty/${name}.cpp CONTENT "// headers only\n")
    set(sources ${PROJECT_BINARY_DIR}/empty/${name}.cpp)
  endif()
  add_library(millrace_${name} STATIC ${sources} ${headers})
  add_library(millrace::${name} ALIAS millrace_${name})
  set_target_properties(millrace_${name} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX)
  target_include_directories(millrace_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src/${name})
  target_compile_features(millrace_${name} PUBLIC cxx_std_20)
  target_link_libraries(millrace_${name}
    PUBLIC ${ARG_LINK}
    PRIVATE $<BUILD_INTERFACE:millrace_options> ${ARG_PRIVATE_LINK})
  millrace_in_batches(millrace_${name} 8)
  install(TARGETS millrace_${name} EXPORT millrace ARCHIVE DESTINATION lib)
  set_property(GLOBAL APPEND PROPERTY MILLRACE_FLOORS ${name})
  # base/log.hpp is for the floors themselves: it needs fmt, which a user of Millrace need not have.
  if(headers)  # cm/ has none
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/millrace/${name}
      DESTINATION include/millrace FILES_MATCHING REGEX "[.]hp*$" REGEX "/base/log[.]hpp$" EXCLUDE)
  endif()
endfunction()
