// SPDX-License-Identifier: Apache-2.0
// A library that tests load and unload: two functions, for their addresses, and one that makes many call stacks.

extern "C" {
[[gnu::visibility("default")]] int first_of_plugin(int value);
[[gnu::visibility("default")]] int second_of_plugin(int value);
[[gnu::visibility("default")]] void call_in_all_ways(void (*called)(void*), void* argument, int depth);

int first_of_plugin(int value) { return value + 1; }
int second_of_plugin(int value) { return value + 2; }

// Calls the function from each of 2^`depth` call stacks.
void call_in_all_ways(void (*called)(void*), void* argument, int depth) {
  if (depth == 0) {
    called(argument);
  } else {
    call_in_all_ways(called, argument, depth - 1);
    call_in_all_ways(called, argument, depth - 1);
  }
  asm volatile("");  // the last call does not become a jump
}
}
