# Headers and two libraries of PyTorch, from its wheels, for the tests of the doors: fetched when this is configured, once,
# into build/pytorch. Where they cannot be had the tests say so and are skipped.
set(STALLOC_TORCH_TESTS "2.6.0;2.11.0;2.15.0" CACHE STRING "Versions of PyTorch whose doors are tested; separated by ;")
set(STALLOC_TORCH_FETCHED "")  # folders `torch`
if(NOT STALLOC_TESTS OR STALLOC_SANITIZE)
  return()
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(failed 0)
foreach(version IN LISTS STALLOC_TORCH_TESTS)
  set(folder ${CMAKE_SOURCE_DIR}/build/pytorch/${version})
  if(NOT EXISTS ${folder}/torch AND NOT failed)
    execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/fetch-pytorch ${version} ${folder}
                    TIMEOUT 60 RESULT_VARIABLE failed ERROR_VARIABLE why ERROR_STRIP_TRAILING_WHITESPACE)
    if(failed)  # then no other is tried
      message(STATUS "PyTorch ${version} cannot be fetched, its door is not tested: ${why}")
    endif()
  endif()
  if(EXISTS ${folder}/torch)
    list(APPEND STALLOC_TORCH_FETCHED ${folder}/torch)
  endif()
endforeach()
