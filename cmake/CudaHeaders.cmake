# SPDX-License-Identifier: Apache-2.0
# stalloc::cuda_headers: the folder of cuda.h (the driver API) of a CUDA toolkit from 12 on. Nothing is linked.
# tools/setup fetches the headers where no toolkit that is usable is installed.

# Sets `out` to the CUDA_VERSION of the folder's cuda.h.
function(read_cuda_version folder out)
  file(STRINGS ${folder}/cuda.h line REGEX "^#define CUDA_VERSION ")
  string(REGEX MATCH "[0-9]+" version "${line}")
  set(${out} ${version} PARENT_SCOPE)
endfunction()

if(NOT EXISTS "${STALLOC_CUDA_INCLUDE}/cuda.h")
  unset(STALLOC_CUDA_INCLUDE CACHE)
  # The places, and what makes one usable, are those of tools/setup.
  foreach(folder "$ENV{CUDA_HOME}/include" "$ENV{CUDA_PATH}/include" /usr/local/cuda/include /usr/include
                 /usr/local/include ${CMAKE_SOURCE_DIR}/build/cuda-headers/include)
    if(EXISTS "${folder}/cuda.h" AND EXISTS "${folder}/cuda_runtime_api.h" AND EXISTS "${folder}/crt/host_defines.h")
      read_cuda_version("${folder}" cuda_version)
      if(cuda_version GREATER_EQUAL 12000)
        set(STALLOC_CUDA_INCLUDE "${folder}" CACHE PATH "the folder of cuda.h")
        break()
      endif()
    endif()
  endforeach()
  find_path(STALLOC_CUDA_INCLUDE cuda.h)
endif()
if(NOT STALLOC_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h not found: set CUDA_HOME to a CUDA toolkit (12 or newer), or run tools/setup")
endif()
read_cuda_version("${STALLOC_CUDA_INCLUDE}" cuda_version)
if(cuda_version LESS 12000)
  set(old "${STALLOC_CUDA_INCLUDE}")
  unset(STALLOC_CUDA_INCLUDE CACHE)
  message(FATAL_ERROR "${old}/cuda.h is of CUDA ${cuda_version}; 12000 or newer is needed: set CUDA_HOME to such a "
                      "toolkit, or run tools/setup")
endif()
add_library(stalloc_cuda_headers INTERFACE)
target_include_directories(stalloc_cuda_headers SYSTEM INTERFACE ${STALLOC_CUDA_INCLUDE})
add_library(stalloc::cuda_headers ALIAS stalloc_cuda_headers)
