// SPDX-License-Identifier: Apache-2.0
// A library that only has a name.
extern "C" __attribute__((visibility("default"))) const int stalloc_test_empty_library = 0;
