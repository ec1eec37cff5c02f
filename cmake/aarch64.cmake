# SPDX-License-Identifier: Apache-2.0
# Cross-builds for AArch64 with the compiler of Debian and Ubuntu, g++-aarch64-linux-gnu, which brings the C and C++ libraries
# along. The other libraries that the product is built with consist of headers alone and are taken from this machine.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_ASM_COMPILER aarch64-linux-gnu-gcc)
# This machine's package of fmt lies in a folder that is named after this machine's processor.
set(fmt_DIR /usr/lib/${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu/cmake/fmt)
# What is built runs under QEMU, from the package qemu-user-static: tests, and stalloc-plan when its man page is made.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
