// SPDX-License-Identifier: Apache-2.0
// The library is loaded, and the process ends.
#include "interpose/base/process.h"
#include "interpose/session/session.h"

namespace stalloc {
namespace {
// glibc hands each constructor the program's arguments.
__attribute__((constructor)) void on_load(int count, char** arguments, char** /*environment*/) {
  if (Session::get().active()) remember_arguments(count, arguments);
}
__attribute__((destructor)) void on_exit() { Session::get().finish(); }
}  // namespace
}  // namespace stalloc
