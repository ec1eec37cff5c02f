// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/interning.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.h"
#include "folder.h"

namespace trace = stalloc::trace;
using stalloc::record::Interning;
using stalloc::test::Folder;
namespace fs = std::filesystem;

namespace {

// Copies of one library, so that each has its functions where the others would have them. Only one is loaded at a time.
class Plugins {
 public:
  ~Plugins() { unload(); }

  std::string load(const std::string& name) {
    unload();
    const std::string path = (folder_.path() / name).string();
    if (!fs::exists(path)) fs::copy_file(RECORD_PLUGIN, path);
    handle_ = dlopen(path.c_str(), RTLD_NOW);
    REQUIRE(handle_ != nullptr);
    return path;
  }
  void unload() {
    if (handle_ != nullptr) dlclose(handle_);
    handle_ = nullptr;
  }
  const void* first() { return address_of("first_of_plugin"); }
  const void* second() { return address_of("second_of_plugin"); }

 private:
  const void* address_of(const char* function) {
    const void* const address = dlsym(handle_, function);
    REQUIRE(address != nullptr);
    return address;
  }

  const Folder folder_;
  void* handle_ = nullptr;
};

std::uint32_t stack_of(Interning& interning, const void* address) {
  void* const frames[] = {const_cast<void*>(address)};
  return interning.stack_of(frames);
}

}  // namespace

TEST_CASE("a library that is loaded again has its number again") {
  Plugins plugins;
  Interning interning;
  const std::string path = plugins.load("a.so");
  const std::uint32_t id = interning.module_of(plugins.first());
  const std::uint32_t stack = stack_of(interning, plugins.first());
  for (int times = 0; times < 3; ++times) {
    plugins.unload();
    plugins.load("a.so");
    CHECK(interning.module_of(plugins.second()) == id);
    CHECK(interning.module_of(plugins.first()) == id);
    CHECK(stack_of(interning, plugins.first()) == stack);
  }
  REQUIRE(interning.new_modules().size() == 1);
  CHECK(interning.new_modules()[0].path == path);
  CHECK(interning.new_stacks().size() == 1);
}

TEST_CASE("a library at the addresses of an unloaded one has a number of its own") {
  Plugins plugins;
  Interning interning;
  plugins.load("a.so");
  const void* const before = plugins.first();
  const std::uint32_t id = interning.module_of(before);
  const std::uint32_t stack = stack_of(interning, before);
  SECTION("from an address on that was not known yet") {
    const std::string path = plugins.load("b.so");
    const std::uint32_t other = interning.module_of(plugins.second());
    CHECK(other != id);
    CHECK(interning.module_of(plugins.first()) == other);
    CHECK(stack_of(interning, plugins.first()) != stack);
    REQUIRE(interning.new_modules().size() == 2);
    CHECK(interning.new_modules()[1].path == path);
  }
  SECTION("or from the next chunk on") {
    interning.forget_new();
    const std::string path = plugins.load("b.so");
    interning.forget_new();
    CHECK(interning.module_of(plugins.first()) != id);
    CHECK(stack_of(interning, plugins.first()) != stack);
    REQUIRE(interning.new_modules().size() == 1);
    CHECK(interning.new_modules()[0].path == path);
  }
  if (plugins.first() != before) WARN("the loader used other addresses, so that this shows nothing");
}

TEST_CASE("what fills a chunk can be read") {
  const std::size_t depth = GENERATE(1, 128);
  Interning interning;
  std::vector<void*> frames(depth);
  for (std::uintptr_t number = 1; !interning.fill_chunk(); ++number) {
    std::fill(frames.begin(), frames.end(), reinterpret_cast<void*>(number));  // in no module
    (void)interning.stack_of(frames);
  }
  const std::vector<trace::Event> events(std::size_t{1} << 20);  // the most of STALLOC_TRACE_CHUNK
  trace::ChunkView chunk;
  chunk.stacks = interning.new_stacks();
  chunk.events = events;
  chunk.last = true;
  const auto read = trace::decode_trace(trace::encode_chunk(chunk));
  CHECK(read.error.empty());
  CHECK(read.value.stacks.size() ==
        trace::kFullChunkBytes / (trace::kBytesPerTable + depth * sizeof(trace::Frame)) + 1);
  interning.forget_new();
  CHECK_FALSE(interning.fill_chunk());
}
