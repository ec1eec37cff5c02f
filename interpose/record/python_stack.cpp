// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/python_stack.h"

#include <atomic>
#include <charconv>
#include <cstring>
#include <new>

#include "interpose/base/loader.h"
#include "interpose/base/log.h"

namespace stalloc::record {
namespace {

// Never destroyed, since threads may record until the process ends.
struct Interpreter {
  PythonFrames frames;
  loader::Module module;
  bool is_library;  // a program may unload it
  // Whether its functions may still be called.
  [[nodiscard]] bool is_loaded() const noexcept {
    loader::Module now;
    return !is_library || (loader::find_module(module.low, &now) && now.low == module.low && now.high == module.high);
  }
};

std::atomic<Interpreter*> interpreter{nullptr};
std::atomic<bool> should_search{true};
std::atomic<bool> unreadable{false};  // there is an interpreter, but its frames cannot be read

// Searches all modules, since a libpython may have been loaded privately (RTLD_LOCAL). Not by dlsym: a new module may
// make its first request while another thread holds the loader's lock and waits for it.
void* find_symbol(const char* name) noexcept {
  loader::Definitions found{name};
  loader::find_definitions({&found, 1});
  return found.first;
}

template <class Function>
Function find_function(const char* name) noexcept {
  return reinterpret_cast<Function>(find_symbol(name));
}

struct Version {
  unsigned major = 0;
  unsigned minor = 0;
};

// Parses a text such as "3.11.7 (main, ...)".
Version parse_version(const char* text) noexcept {
  Version version;
  const char* const end = text + std::strlen(text);
  const auto major = std::from_chars(text, end, version.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return {};
  return std::from_chars(major.ptr + 1, end, version.minor).ec == std::errc() ? version : Version{};
}

// Returns null if something is missing, and the reason in `why`.
Interpreter* make_interpreter(Version version, const char** why) noexcept {
  PythonRuntime runtime;
  if (find_python_layout(version.major, version.minor, find_symbol("_PyRuntime"), &runtime.layout, why) == nullptr) {
    return nullptr;
  }
  runtime.code_type = find_symbol("PyCode_Type");
  runtime.text_type = find_symbol("PyUnicode_Type");
  runtime.bytes_type = find_symbol("PyBytes_Type");
  runtime.this_thread = find_function<void* (*)()>("PyGILState_GetThisThreadState");
  runtime.is_initialized = find_function<int (*)()>("Py_IsInitialized");
  // Since 3.12, a thread's state belongs to the interpreter in which the thread is; before, to the thread's first one.
  const bool follows = version.minor >= 12;
  runtime.newest_interpreter = follows ? nullptr : find_function<void* (*)()>("PyInterpreterState_Head");
  runtime.main_interpreter = follows ? nullptr : find_function<void* (*)()>("PyInterpreterState_Main");
  loader::Module module;
  const void* const evaluates = find_symbol("PyEval_EvalCode");
  *why = "it does not export what is needed";
  if (runtime.code_type == nullptr || runtime.text_type == nullptr || runtime.bytes_type == nullptr ||
      runtime.this_thread == nullptr || runtime.is_initialized == nullptr || evaluates == nullptr ||
      (!follows && (runtime.newest_interpreter == nullptr || runtime.main_interpreter == nullptr)) ||
      !loader::find_module(evaluates, &module)) {
    return nullptr;
  }
  const bool is_library = module.path != nullptr && *module.path != '\0';
  return new (std::nothrow) Interpreter{PythonFrames(runtime), module, is_library};
}

void search() noexcept {
  const auto version_text = find_function<const char* (*)()>("Py_GetVersion");
  if (version_text == nullptr) return;
  const Version version = parse_version(version_text());
  const char* why = "";
  Interpreter* const made = make_interpreter(version, &why);
  if (made != nullptr) {
    interpreter = made;
    return;
  }
  unreadable = true;
  log::info("the trace will hold no Python frames: Python {}.{}: {}", version.major, version.minor, why);
}

}  // namespace

void expect_python() noexcept {
  if (interpreter.load() == nullptr && !unreadable.load()) should_search = true;
}

std::size_t capture_python_stack(std::span<PythonFrame> frames) noexcept {
  Interpreter* found = interpreter.load(std::memory_order_acquire);
  if (found == nullptr) {
    if (!should_search.load(std::memory_order_relaxed) || !should_search.exchange(false)) return 0;
    search();
    found = interpreter.load(std::memory_order_acquire);
    if (found == nullptr) return 0;
  }
  if (!found->is_loaded()) {
    interpreter.compare_exchange_strong(found, nullptr);
    return 0;
  }
  const std::size_t count = found->frames.capture(frames);
  if (count == 0 && found->frames.take_failure()) {
    log::info(
        "the trace will hold no more Python frames: those of this Python are not as those of its version should be");
  }
  return count;
}

std::size_t frames_inside_python(std::span<void* const> addresses) noexcept {
  const Interpreter* const found = interpreter.load(std::memory_order_acquire);
  std::size_t count = 0;
  while (count < addresses.size() && (found == nullptr || !found->module.holds(addresses[count]))) ++count;
  return count;
}

bool describe_python_frame(const PythonFrame& frame, PythonPlace* place) {
  const Interpreter* const found = interpreter.load(std::memory_order_acquire);
  return found != nullptr && found->frames.describe(frame, place);
}

}  // namespace stalloc::record
