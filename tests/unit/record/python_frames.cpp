// SPDX-License-Identifier: Apache-2.0
// An interpreter of our own making, in memory as that of 3.12 has it: frames are read only where all is as it should
// be.
#include "interpose/record/python_frames.h"

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <deque>
#include <utility>

#include "catch.h"

using namespace stalloc::record;

namespace {

// 512 bytes, in which numbers and addresses are put at offsets.
struct Object {
  alignas(16) std::array<std::byte, 512> bytes{};
  template <class Value>
  void put(std::size_t at, Value value) {
    std::memcpy(&bytes[at], &value, sizeof value);
  }
};

int initialized = 1;
void* thread_state = nullptr;
void* newest = nullptr;
void* first_interpreter = nullptr;

PythonRuntime runtime_with_types(const Object& types) {
  PythonRuntime runtime;
  const char* why = nullptr;
  REQUIRE(find_python_layout(3, 12, nullptr, &runtime.layout, &why) != nullptr);
  runtime.code_type = types.bytes.data();
  runtime.text_type = types.bytes.data() + 1;
  runtime.bytes_type = types.bytes.data() + 2;
  runtime.this_thread = [] { return thread_state; };
  runtime.is_initialized = [] { return initialized; };
  return runtime;
}

class Interpreter {
 public:
  Interpreter() : runtime(runtime_with_types(types_)), layout(runtime.layout) {
    initialized = 1;
    newest = first_interpreter = this;
    thread_ = add();
    cframe_ = add();
    thread_->put(layout.thread_frame, cframe_);
    thread_state = thread_->bytes.data();
  }
  ~Interpreter() { thread_state = nullptr; }

  Object* add() { return &objects_.emplace_back(); }

  Object* text(const char* characters) { return text(characters, std::strlen(characters), 1, true); }
  Object* text(const void* characters, std::size_t count, unsigned width, bool ascii) {
    Object* made = add();
    made->put(layout.object_type, runtime.text_type);
    made->put(layout.text_length, std::uint64_t{count});
    made->put(layout.text_state, width << 2 | 1U << 5 | (ascii ? 1U << 6 : 0U) | 1U);
    std::memcpy(&made->bytes[ascii ? layout.text_ascii : layout.text_other], characters, count * width);
    return made;
  }

  // Code whose instructions are on one line each, from `line` on.
  Object* code(Object* name, Object* file, int line) {
    Object* lines = add();
    lines->put(layout.object_type, runtime.bytes_type);
    lines->put(layout.bytes_size, std::uint64_t{12});
    for (std::size_t i = 0; i < 12; i += 3) lines->put(layout.bytes_data + i, std::uint32_t{i == 0 ? 0xd0U : 0xd8U});
    Object* made = add();
    made->put(layout.object_type, runtime.code_type);
    made->put(layout.code_name, name);
    made->put(layout.code_file, file);
    made->put(layout.code_lines, lines);
    made->put(layout.code_first_line, line);
    return made;
  }

  // A frame that the innermost one so far is called by.
  Object* enter(Object* code, int instruction, unsigned char owner = 0) {
    Object* frame = add();
    frame->put(layout.frame_previous, innermost_);
    frame->put(layout.frame_code, code);
    frame->put(layout.frame_owner, owner);
    frame->put(layout.frame_instruction, &code->bytes[layout.code_instructions] + 2 * instruction);
    cframe_->put(layout.frame_indirection, frame);
    return innermost_ = frame;
  }

 private:
  Object types_;

 public:
  PythonRuntime runtime;
  const PythonLayout& layout;

 private:
  std::deque<Object> objects_;
  Object* thread_ = nullptr;
  Object* cframe_ = nullptr;
  Object* innermost_ = nullptr;
};

struct Read {
  explicit Read(const Interpreter& interpreter) : frames(interpreter.runtime) {}
  PythonFrames frames;
  std::array<PythonFrame, 8> captured{};

  std::size_t capture() { return frames.capture(captured); }
  std::string name(std::size_t at) {
    PythonPlace place;
    if (!frames.describe(captured[at], &place)) return "none";
    return place.file + ":" + std::to_string(place.line) + ": " + place.function;
  }
};

}  // namespace

TEST_CASE("frames are read innermost first, those of the interpreter itself left out") {
  Interpreter python;
  Object* const file = python.text("/x/train.py");
  Object* const cleanup = python.text("__init__");
  python.enter(python.code(python.text("<module>"), file, 100), 1);
  python.enter(python.code(python.text("<interpreter trampoline>"), file, 1), 0, 3);
  python.enter(python.code(cleanup, cleanup, 1), 2);
  python.enter(python.code(python.text("step"), file, 20), 0);
  python.enter(python.code(python.text("forward"), file, 7), -1);
  Read read(python);
  for (int stack = 0; stack < 10; ++stack) {  // with and without a proof
    REQUIRE(read.capture() == 4);
    CHECK(read.name(0) == "/x/train.py:7: forward");
    CHECK(read.name(1) == "/x/train.py:20: step");
    CHECK(read.name(2) == "none");
    CHECK(read.name(3) == "/x/train.py:101: <module>");
  }
  CHECK(read.frames.capture(std::span(read.captured).first(1)) == 1);
}

TEST_CASE("names of any characters become UTF-8") {
  Interpreter python;
  const std::array<std::uint16_t, 4> wide{0x51fd, 0x6570, 0xdc80, 0xe9};
  const std::array<std::uint32_t, 2> widest{0x1f40d, 'y'};
  python.enter(python.code(python.text("gr\xf6\xdf", 4, 1, false), python.text(wide.data(), 4, 2, false), 1), 0);
  python.enter(python.code(python.text(widest.data(), 2, 4, false), python.text(""), 1), 0);
  Read read(python);
  REQUIRE(read.capture() == 2);
  CHECK(read.name(1) == "\xe5\x87\xbd\xe6\x95\xb0\xef\xbf\xbd\xc3\xa9:1: gr\xc3\xb6\xc3\x9f");
  CHECK(read.name(0) == ":1: \xf0\x9f\x90\x8dy");
}

TEST_CASE("other code at the same address has another fingerprint") {
  Interpreter python;
  Object* const code = python.code(python.text("f"), python.text("f.py"), 1);
  python.enter(code, 0);
  Read read(python);
  REQUIRE(read.capture() == 1);
  const auto before = read.captured[0].fingerprint;
  code->put(python.layout.code_first_line, 2);
  REQUIRE(read.capture() == 1);
  CHECK(read.captured[0].fingerprint != before);
}

TEST_CASE("there are no frames without a thread, in an interpreter that ends, and beside another one") {
  Interpreter python;
  python.runtime.newest_interpreter = [] { return newest; };
  python.runtime.main_interpreter = [] { return first_interpreter; };
  python.enter(python.code(python.text("f"), python.text("f.py"), 1), 0);
  Read read(python);
  initialized = 0;
  CHECK(read.capture() == 0);
  initialized = 1;
  newest = nullptr;
  CHECK(read.capture() == 0);
  newest = first_interpreter;
  void* const state = std::exchange(thread_state, nullptr);
  CHECK(read.capture() == 0);
  thread_state = state;
  CHECK(read.capture() == 1);
  CHECK_FALSE(read.frames.take_failure());
}

TEST_CASE("an interpreter that is not laid out as it should be is left alone for good") {
  void* const nowhere = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(nowhere != MAP_FAILED);
  const auto fails = [&](auto spoil) {
    Interpreter python;
    Object* const name = python.text("f");
    Object* const code = python.code(name, python.text("f.py"), 1);
    Object* const outer = python.enter(code, 0);
    Object* const inner = python.enter(code, 0);
    spoil(python, outer, inner, code, name);
    Read read(python);
    CHECK(read.capture() == 0);
    CHECK(read.frames.take_failure());
    CHECK_FALSE(read.frames.take_failure());
    CHECK(read.capture() == 0);
  };
  using P = Interpreter;
  fails([](P& p, Object*, Object*, Object* code, Object*) { code->put(p.layout.object_type, nullptr); });
  fails([](P& p, Object*, Object*, Object*, Object* name) { name->put(p.layout.object_type, p.runtime.code_type); });
  fails([](P& p, Object* outer, Object*, Object*, Object*) { outer->put(p.layout.frame_code, std::uint64_t{0}); });
  fails([](P& p, Object* outer, Object*, Object*, Object*) { outer->put(p.layout.frame_owner, '\x7f'); });
  fails([](P& p, Object* outer, Object*, Object*, Object*) {
    outer->put(p.layout.frame_instruction, std::uint64_t{0x10});
  });
  fails([&](P& p, Object* outer, Object*, Object*, Object*) { outer->put(p.layout.frame_previous, nowhere); });
  fails([&](P& p, Object*, Object* inner, Object*, Object*) { inner->put(p.layout.frame_code, nowhere); });
  fails([&](P& p, Object*, Object*, Object* code, Object*) { code->put(p.layout.code_lines, nowhere); });
  fails([&](P& p, Object*, Object*, Object* code, Object*) { code->put(p.layout.code_file, nowhere); });
  fails([&](P&, Object*, Object*, Object*, Object*) { thread_state = nowhere; });
  munmap(nowhere, 4096);
}

TEST_CASE("frames that go round in a circle are read once") {
  Interpreter python;
  Object* const frame = python.enter(python.code(python.text("f"), python.text("f.py"), 1), 0);
  frame->put(python.layout.frame_previous, frame);
  Read read(python);
  CHECK(read.capture() <= read.captured.size());
}

TEST_CASE("newer interpreters describe their frames, and are believed where that is plausible") {
  std::array<std::uint64_t, 96> words{};
  std::memcpy(words.data(), "xdebugpy", 8);
  words[1] = 0x030d00f0;
  for (std::size_t i = 3; i < words.size(); ++i) words[i] = 8 * i;
  PythonLayout layout;
  const char* why = nullptr;
  const auto found = [&](unsigned minor) {
    why = nullptr;
    return find_python_layout(3, minor, words.data(), &layout, &why) != nullptr;
  };
  REQUIRE(found(13));
  CHECK(layout.thread_frame == 8 * 23);
  CHECK(layout.text_other == 8 * 70 + 16);
  CHECK_FALSE(found(14));
  CHECK(why != nullptr);
  words[1] = 0x030e0af0;
  REQUIRE(found(14));
  CHECK(layout.frame_owner == 8 * 36);
  words[2] = 1;
  CHECK_FALSE(found(14));
  CHECK(std::string(why).find("global lock") != std::string::npos);
  words[2] = 0;
  words[36] = 1 << 20;
  CHECK_FALSE(found(14));
  words[36] = 0;
  words[0] = 0;
  CHECK_FALSE(found(14));
  for (const unsigned minor : {0U, 9U, 15U}) CHECK_FALSE(found(minor));
  CHECK(find_python_layout(2, 12, nullptr, &layout, &why) == nullptr);
  CHECK(find_python_layout(3, 13, nullptr, &layout, &why) == nullptr);
}
