// SPDX-License-Identifier: Apache-2.0
// A program that is linked with the library of static_allocations.cpp.
extern "C" void use_library();

int main() { use_library(); }
