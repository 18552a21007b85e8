# `cmake --install` and find_package(millrace): targets millrace::base … millrace::message.
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
file(WRITE ${CMAKE_BINARY_DIR}/millraceConfig.cmake [[
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
find_dependency(spdlog)
include(${CMAKE_CURRENT_LIST_DIR}/millraceTargets.cmake)
]])
install(EXPORT millrace FILE millraceTargets.cmake NAMESPACE millrace::
  DESTINATION lib/cmake/millrace)
install(FILES ${CMAKE_BINARY_DIR}/millraceConfig.cmake
  ${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake DESTINATION lib/cmake/millrace)
