// SPDX-License-Identifier: Apache-2.0
// What the library does when it is loaded and when the process ends.
#include "interpose/base/loader.h"
#include "interpose/base/process.h"
#include "interpose/session/session.h"

namespace stalloc {
namespace {
// glibc passes the program's arguments to each constructor.
__attribute__((constructor)) void on_load(int count, char** arguments, char** /*environment*/) {
  loader::prepare();
  if (Session::get().active()) remember_arguments(count, arguments);
}
__attribute__((destructor)) void on_exit() { Session::get().finish(); }
}  // namespace
}  // namespace stalloc
