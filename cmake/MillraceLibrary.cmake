# One library to link, libmillrace: all floors together, shared (millrace::millrace) and static
# (millrace::millrace_static). The floors' own libraries (millrace::flow …) stand beside it.
get_property(floors GLOBAL PROPERTY MILLRACE_FLOORS)
set(objects)
foreach(floor ${floors})
  list(APPEND objects $<TARGET_OBJECTS:millrace_${floor}>)
endforeach()
set(private_libraries spdlog::spdlog fmt::fmt nettle deflate ssl crypto ${CMAKE_DL_LIBS})

foreach(kind shared static)
  string(TOUPPER ${kind} upper)
  add_library(millrace_${kind} ${upper} ${objects})
  set_target_properties(millrace_${kind} PROPERTIES OUTPUT_NAME millrace LINKER_LANGUAGE CXX)
  target_include_directories(millrace_${kind} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(millrace_${kind} PUBLIC cxx_std_20)
  target_link_libraries(millrace_${kind} PUBLIC Threads::Threads
    PRIVATE $<BUILD_INTERFACE:millrace_options> ${private_libraries})
endforeach()
add_library(millrace::millrace ALIAS millrace_shared)
add_library(millrace::millrace_static ALIAS millrace_static)
set_target_properties(millrace_static PROPERTIES EXPORT_NAME millrace_static)

set(exported_symbols ${CMAKE_CURRENT_LIST_DIR}/libmillrace.map)
# Before 1.0, a minor version may change what programs link to.
set_target_properties(millrace_shared PROPERTIES EXPORT_NAME millrace
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_link_options(millrace_shared PRIVATE -Wl,--version-script=${exported_symbols})
if(NOT MILLRACE_SANITIZE)  # a sanitizer's functions come from the program
  target_link_options(millrace_shared PRIVATE -Wl,-z,defs)
endif()
set_property(TARGET millrace_shared APPEND PROPERTY LINK_DEPENDS ${exported_symbols})

# The shared library needs no package of its user but libibverbs' header, so it is exported apart
# from the static ones, which need fmt, spdlog, nettle, libdeflate and OpenSSL.
install(TARGETS millrace_shared EXPORT millrace_shared LIBRARY DESTINATION lib)
install(TARGETS millrace_static EXPORT millrace ARCHIVE DESTINATION lib)

set(pc_private "-lspdlog -lfmt -lnettle -ldeflate -lssl -lcrypto -lpthread")
foreach(library ${CMAKE_DL_LIBS})
  string(APPEND pc_private " -l${library}")
endforeach()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/millrace.pc @ONLY CONTENT
[[prefix=${pcfiledir}/../..
includedir=${prefix}/include
libdir=${prefix}/lib

Name: millrace
Description: @PROJECT_DESCRIPTION@
Version: @PROJECT_VERSION@
Cflags: -I${includedir}
Libs: -L${libdir} -lmillrace
Libs.private: @pc_private@
]])
install(FILES ${PROJECT_BINARY_DIR}/millrace.pc DESTINATION lib/pkgconfig)
