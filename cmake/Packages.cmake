# SPDX-License-Identifier: Apache-2.0
# `cpack` in the build folder makes a .deb and a tarball that can be unpacked anywhere; tools/package makes these and the
# wheel.
if(NOT SKBUILD)  # a wheel carries both itself
  install(FILES LICENSE THIRD_PARTY_NOTICES.md README.md DESTINATION share/doc/stalloc)
endif()

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME stalloc)
set(CPACK_PACKAGE_VENDOR stalloc)
set(CPACK_PACKAGE_CONTACT "the stalloc developers <stalloc@invalid.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "GPU memory without fragmentation, for programs that use CUDA")
set(CPACK_PACKAGE_DESCRIPTION "Records what a program allocates on the GPU, plans where every request goes, and serves \
the next run from the plan, or any run without one. Preloaded: the program is not changed.")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME stalloc-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_OUTPUT_FILE_PREFIX ${CMAKE_BINARY_DIR}/packages)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# What both binaries need (tests/checks/binary.py), whatever the machine that they are built on has.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.34), python3 (>= 3.9)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libunwind8)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
include(CPack)
