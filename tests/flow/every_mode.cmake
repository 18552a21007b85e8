# The conformance suite of flow queues in the other modes of the soft device: all points in one
# process for each of its tests, as starting 33 would cost more than what they do. Included where
# MILLRACE_TEST_EVERY_MODE is on; scripts/test-long runs the same with every batching and mover.
#
# Watermarks over push2 are refused where bytes may land in any order (strict, faulty).

# millrace_every_point(MODE SETTING KIND [WITHOUT FILTER] TESTS...): KIND is Items or Frames.
function(millrace_every_point mode setting kind)
  cmake_parse_arguments(ARG "" "WITHOUT" "TESTS" ${ARGN})
  foreach(name ${ARG_TESTS})
    set(test ${mode}.flow.EveryPointOf${kind}.${name})
    set(filter "Points/EveryDesignOf${kind}.${name}/*:Points/EveryOwnQueueOf${kind}.${name}/*")
    add_test(NAME ${test} COMMAND flow_tests --gtest_brief=1
      "--gtest_filter=${filter}-${ARG_WITHOUT}")
    # A test that was renamed must not go without notice.
    set_tests_properties(${test} PROPERTIES TIMEOUT 240 LABELS ${mode}
      ENVIRONMENT MILLRACE_SOFT_MODE=${setting} FAIL_REGULAR_EXPRESSION " 0 tests from")
  endforeach()
endfunction()

set(quick SaysFullAndGoesOn KeepsOrderWhereItsCountersWrap SleepsAndWakes
  TakesItemsInPlaceAndInBatches EndsWaitsThatAreCancelled FlushesThoughTheConsumerMakesNoMoreCalls
  LetsTheConsumerDrainAfterTheProducerClosed TellsOfLossAndOfClose)
set(wraps KeepsOrderWhereTheRingWraps)
set(unordered "*push2_watermark*")

millrace_every_point(shaped shaped:10g,latency=1us Frames TESTS ${quick} ${wraps})
millrace_every_point(strict strict:seed=7 Frames WITHOUT ${unordered} TESTS ${quick} ${wraps})
# One request of a thousand is lost: a timeout later (67 ms, mostly) it is there.
set(bad_link faulty:seed=3,loss=0.1%)
millrace_every_point(faulty ${bad_link} Items WITHOUT ${unordered} TESTS ${quick} ${wraps})
millrace_every_point(faulty ${bad_link} Frames WITHOUT ${unordered} TESTS ${quick} ${wraps})
