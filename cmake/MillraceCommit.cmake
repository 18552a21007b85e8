# Writes the header HEADER with the commit of SOURCE, if it is not there so already. Run at each
# build (tools/CMakeLists.txt): what is committed changes without CMake being asked.
cmake_minimum_required(VERSION 3.25)
set(commit "unknown (not built from a git repository)")
find_package(Git QUIET)
if(Git_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --abbrev=12
    --match= OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    RESULT_VARIABLE status)
  if(status EQUAL 0)
    string(REPLACE "-dirty" " with changes" commit "${described}")
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define MILLRACE_COMMIT \"@commit@\"\n" @ONLY)
