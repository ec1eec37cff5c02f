// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/loader.h"

#include <dlfcn.h>
#include <link.h>

#include <chrono>
#include <future>
#include <string>

#include "catch.h"

using namespace stalloc;

namespace {

const char here = 0;

// What a thread finds out while this one has the lock of dl_iterate_phdr, as another thread of a forked child's parent
// may have. Nothing within ten seconds: it waits for the lock.
template <class Ask>
bool answers_beside_the_lock(Ask ask) {
  struct Beside {
    Ask ask;
    std::future<bool> answer;
    bool in_time = false;
  } beside{ask, {}};
  const auto visit = [](dl_phdr_info*, std::size_t, void* data) {
    auto& to = *static_cast<Beside*>(data);
    to.answer = std::async(std::launch::async, to.ask);
    to.in_time = to.answer.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    return 1;
  };
  dl_iterate_phdr(visit, &beside);
  return beside.answer.get() && beside.in_time;
}

}  // namespace

TEST_CASE("an address is found in its module", "[loader]") {
  loader::Module module;
  REQUIRE(loader::find_module(&here, &module));
  CHECK(module.holds(&here));
  CHECK(std::string(module.path).empty());  // the program
  const auto* const in_libc = reinterpret_cast<const void*>(dlsym(RTLD_DEFAULT, "gnu_get_libc_version"));
  CHECK_FALSE(module.holds(in_libc));
  REQUIRE(loader::find_module(in_libc, &module));
  CHECK(module.holds(in_libc));
  CHECK_FALSE(std::string(module.path).empty());
  const int on_the_stack = 0;
  CHECK_FALSE(loader::find_module(&on_the_stack, &module));
}

TEST_CASE("the definitions of a symbol are found in all modules", "[loader]") {
  void* const in_libc = dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
  loader::Definitions sought[] = {
      {"gnu_get_libc_version"}, {"gnu_get_libc_version", in_libc}, {"gnu_get_libc_versio"}, {"dlsym"}};
  loader::find_definitions(sought);
  CHECK(sought[0].first == in_libc);
  CHECK(sought[0].count == 1);
  CHECK(sought[1].count == 0);
  CHECK(sought[2].first == nullptr);
  CHECK(sought[3].count == 1);
}

TEST_CASE("a module is found without a lock that fork does not renew", "[loader]") {
  if (dlsym(RTLD_DEFAULT, "_dl_find_object") == nullptr) return;  // glibc before 2.35
  CHECK(answers_beside_the_lock([] {
    loader::Module module;
    return loader::find_module(&here, &module);
  }));
}

TEST_CASE("the order of modules in the search of the global scope", "[loader]") {
  const auto* const in_libc = reinterpret_cast<const void*>(dlsym(RTLD_DEFAULT, "gnu_get_libc_version"));
  const int on_the_stack = 0;
  CHECK(loader::precedes(&here, in_libc));
  CHECK_FALSE(loader::precedes(in_libc, &here));
  CHECK_FALSE(loader::precedes(&here, &here));
  CHECK_FALSE(loader::precedes(&on_the_stack, in_libc));
}
