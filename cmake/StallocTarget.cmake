# SPDX-License-Identifier: Apache-2.0
# Settings that every target of the project shares.
add_library(stalloc_settings INTERFACE)
target_include_directories(stalloc_settings INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(stalloc_settings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlapping copies in std::string's operator+ at -O3 (GCC bug 105651).
  target_compile_options(stalloc_settings INTERFACE -Wno-restrict)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # g++ 13 sees a copy past the end in fmt 9's big integers, where they are inlined; g++ 12 and clang watch for true ones.
  target_compile_options(stalloc_settings INTERFACE -Wno-array-bounds -Wno-stringop-overflow)
endif()
target_compile_definitions(stalloc_settings INTERFACE STALLOC_VERSION="${PROJECT_VERSION}")
if(STALLOC_SANITIZE)
  target_compile_options(stalloc_settings INTERFACE -fsanitize=${STALLOC_SANITIZE} -fno-omit-frame-pointer
                                                    -fno-sanitize-recover=all)
  target_link_options(stalloc_settings INTERFACE -fsanitize=${STALLOC_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # AddressSanitizer makes g++ see uninitialized members in std::regex, which Catch2 uses (GCC bug 105562).
    target_compile_options(stalloc_settings INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
