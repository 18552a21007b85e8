# Runs PROGRAM with a mistake made (FAULT), or without (FAULT empty), on the tests of FILTER. A
# mistake must fail at least one of them, by an expectation: not by a crash and not by time. What two
# threads do beside each other meets a mistake in most runs: it has five to be noticed in. What fails
# once is noticed, and the other tests of FILTER would only wait for what must not come.
set(ENV{MILLRACE_TEST_FAULT} "${FAULT}")
foreach(run RANGE 1 5)
  execute_process(COMMAND ${PROGRAM} "--gtest_filter=${FILTER}" --gtest_brief=1 --gtest_fail_fast
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 100)
  if(FAULT STREQUAL "" OR NOT result STREQUAL "0")
    break()
  endif()
endforeach()
if(output MATCHES "[^0-9]0 tests from" OR NOT output MATCHES "PASSED|FAILED")
  message(FATAL_ERROR "no test matches ${FILTER}:\n${output}")
endif()
if(FAULT STREQUAL "" AND NOT result STREQUAL "0")
  message(FATAL_ERROR "fails with no mistake made (${result}):\n${output}")
elseif(NOT FAULT STREQUAL "" AND result STREQUAL "0")
  message(FATAL_ERROR "nobody noticed the mistake ${FAULT}:\n${output}")
elseif(NOT FAULT STREQUAL "" AND NOT result STREQUAL "1")
  message(FATAL_ERROR "${FAULT} ended with '${result}' and not with a failed test:\n${output}")
endif()
