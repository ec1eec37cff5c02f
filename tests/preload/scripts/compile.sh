# SPDX-License-Identifier: Apache-2.0
# Compiles, links and runs a program with the compiler named by $1, with several compilers at once.
set -eu
compiler=$1
cat > main.cpp <<'CPP'
#include <cstdio>
#include <stdexcept>
int helper(int);
int main() {
  try {
    helper(1);
  } catch (const std::exception& error) {
    std::puts(error.what());
  }
}
CPP
cat > helper.cpp <<'CPP'
#include <stdexcept>
int helper(int value) { throw std::runtime_error(value ? "compiled and run" : ""); }
CPP
"$compiler" -c -O1 main.cpp & first=$!
"$compiler" -c -O1 helper.cpp & second=$!
wait $first
wait $second
"$compiler" main.o helper.o -o program
./program
cksum main.o helper.o program
if "$compiler" -c nothing.cpp 2> /dev/null; then exit 1; fi
