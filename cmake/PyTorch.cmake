# SPDX-License-Identifier: Apache-2.0
# Headers and two libraries of PyTorch, from its wheels (5 MB a release): what doors are built with, and tested on. They are
# fetched when this is configured, once, into build/pytorch. Where they cannot be had a line says so, and there are no doors.
set(STALLOC_TORCH_RELEASES 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0)  # the last of each minor version
set(tested 2.11.0 2.15.0)
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)  # PyPI's older wheels for AArch64 are built without CUDA
  list(PREPEND STALLOC_TORCH_RELEASES 2.6.0 2.7.1 2.8.0 2.9.1 2.10.0)
  list(PREPEND tested 2.6.0)
endif()
set(STALLOC_TORCH_FOLDER ${CMAKE_SOURCE_DIR}/build/pytorch)
if(CMAKE_CROSSCOMPILING)
  string(APPEND STALLOC_TORCH_FOLDER -${CMAKE_SYSTEM_PROCESSOR})
endif()
set(STALLOC_TORCH_DOORS "" CACHE STRING "Releases of PyTorch to build and install doors for, separated by ;, or ALL of them")
set(STALLOC_TORCH_TESTS "${tested}" CACHE STRING "Releases of PyTorch whose doors are tested, separated by ;, or ALL")

set(wanted ${STALLOC_TORCH_DOORS})
if(wanted STREQUAL "ALL")
  set(wanted ${STALLOC_TORCH_RELEASES})
endif()
set(STALLOC_TORCH_INSTALLED "")  # folders `torch` whose doors are installed
set(STALLOC_TORCH_FETCHED "")    # all folders `torch`
set(STALLOC_TORCH_TESTED "")       # releases
if(STALLOC_TESTS AND NOT STALLOC_SANITIZE)
  set(STALLOC_TORCH_TESTED ${STALLOC_TORCH_TESTS})
endif()
if(STALLOC_TORCH_TESTED STREQUAL "ALL")
  set(STALLOC_TORCH_TESTED ${STALLOC_TORCH_RELEASES})
endif()
set(releases ${wanted} ${STALLOC_TORCH_TESTED})
list(REMOVE_DUPLICATES releases)
if(releases)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
set(failed 0)
foreach(release IN LISTS releases)
  set(folder ${STALLOC_TORCH_FOLDER}/${release})
  if(NOT EXISTS ${folder}/torch AND NOT failed)
    execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/fetch-pytorch ${release} ${folder}
                            --machine ${CMAKE_SYSTEM_PROCESSOR}
                    TIMEOUT 60 RESULT_VARIABLE failed ERROR_VARIABLE why ERROR_STRIP_TRAILING_WHITESPACE)
    if(failed)  # then no other is tried
      message(STATUS "PyTorch ${release} cannot be fetched, there is no door for it: ${why}")
    endif()
  endif()
  if(EXISTS ${folder}/torch)
    list(APPEND STALLOC_TORCH_FETCHED ${folder}/torch)
    if(release IN_LIST wanted)
      list(APPEND STALLOC_TORCH_INSTALLED ${folder}/torch)
    endif()
  endif()
endforeach()
