# `cmake --install` and find_package(millrace): targets millrace::millrace (libmillrace.so), and,
# where the packages fmt and spdlog and the libraries nettle, deflate and ssl are at hand, millrace::millrace_static
# and the floors millrace::base … millrace::message, which are static libraries.
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/millraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
file(WRITE ${PROJECT_BINARY_DIR}/millraceConfig.cmake [[
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/millraceSharedTargets.cmake)
find_package(fmt QUIET)
find_package(spdlog QUIET)
find_library(MILLRACE_NETTLE nettle)
find_library(MILLRACE_DEFLATE deflate)
find_library(MILLRACE_SSL ssl)
mark_as_advanced(MILLRACE_NETTLE MILLRACE_DEFLATE MILLRACE_SSL)
if(fmt_FOUND AND spdlog_FOUND AND MILLRACE_NETTLE AND MILLRACE_DEFLATE AND MILLRACE_SSL)
  include(${CMAKE_CURRENT_LIST_DIR}/millraceTargets.cmake)
endif()
foreach(component ${millrace_FIND_COMPONENTS})
  if(TARGET millrace::${component})
    set(millrace_${component}_FOUND TRUE)
  elseif(millrace_FIND_REQUIRED_${component})
    set(millrace_FOUND FALSE)
    set(millrace_NOT_FOUND_MESSAGE
      "There is no millrace::${component}. The static libraries need the packages fmt, spdlog, nettle, libdeflate and OpenSSL (Debian: libfmt-dev, libspdlog-dev, nettle-dev, libdeflate-dev, libssl-dev).")
  endif()
endforeach()
]])
install(EXPORT millrace_shared FILE millraceSharedTargets.cmake NAMESPACE millrace::
  DESTINATION lib/cmake/millrace)
install(EXPORT millrace FILE millraceTargets.cmake NAMESPACE millrace::
  DESTINATION lib/cmake/millrace)
install(FILES ${PROJECT_BINARY_DIR}/millraceConfig.cmake
  ${PROJECT_BINARY_DIR}/millraceConfigVersion.cmake DESTINATION lib/cmake/millrace)
