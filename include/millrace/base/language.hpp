// Every public header includes this one, itself or through another: says in one line what a hundred
// errors would mean.
#pragma once

#if __cplusplus < 202002L
#error \
    "Millrace needs C++20: compile with -std=c++20 (CMake: target_compile_features(... cxx_std_20))"
#endif
