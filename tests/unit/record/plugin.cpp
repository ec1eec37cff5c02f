// SPDX-License-Identifier: Apache-2.0
// A library that a test loads and unloads: two functions, for their addresses.

extern "C" {
[[gnu::visibility("default")]] int first_of_plugin(int value);
[[gnu::visibility("default")]] int second_of_plugin(int value);
int first_of_plugin(int value) { return value + 1; }
int second_of_plugin(int value) { return value + 2; }
}
