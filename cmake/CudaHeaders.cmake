# SPDX-License-Identifier: Apache-2.0
# stalloc::cuda_headers: the folder of cuda.h (the driver API) of any CUDA toolkit from 12 on. Nothing is linked.
# tools/setup fetches the header where no toolkit is installed.
find_path(STALLOC_CUDA_INCLUDE cuda.h
          HINTS ENV CUDA_HOME ENV CUDA_PATH
          PATHS /usr/local/cuda ${CMAKE_SOURCE_DIR}/build/cuda-headers
          PATH_SUFFIXES include)
if(NOT STALLOC_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h not found: set CUDA_HOME to a CUDA toolkit (12 or newer), or run tools/setup")
endif()
file(STRINGS ${STALLOC_CUDA_INCLUDE}/cuda.h cuda_version_line REGEX "^#define CUDA_VERSION ")
string(REGEX MATCH "[0-9]+" cuda_version "${cuda_version_line}")
if(cuda_version LESS 12000)
  message(FATAL_ERROR "${STALLOC_CUDA_INCLUDE}/cuda.h is of CUDA ${cuda_version}; 12000 or newer is needed")
endif()
add_library(stalloc_cuda_headers INTERFACE)
target_include_directories(stalloc_cuda_headers SYSTEM INTERFACE ${STALLOC_CUDA_INCLUDE})
add_library(stalloc::cuda_headers ALIAS stalloc_cuda_headers)
