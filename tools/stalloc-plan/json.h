// SPDX-License-Identifier: Apache-2.0
// Writes JSON from front to back.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace stalloc::tool {

// A number that is written with a fixed number of digits after the decimal point.
struct Fixed {
  double value = 0;
  int digits = 6;
};

// Writes one JSON text in the order of the calls, with its names, commas and escapes. It keeps nothing but the text,
// since a run may have millions of requests. A short text is one line; in a long one each object and array begins a
// line. Throws std::bad_alloc. Not thread-safe.
class JsonWriter {
 public:
  enum class Length : std::uint8_t { Short, Long };
  explicit JsonWriter(Length length = Length::Short) : before_scope_(length == Length::Long ? ",\n" : ", ") {}

  // An open object or array. It is closed when the scope is destroyed.
  class [[nodiscard]] Scope {
   public:
    ~Scope() { writer_.end(end_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend JsonWriter;
    Scope(JsonWriter& writer, char end) : writer_(writer), end_(end) {}
    JsonWriter& writer_;
    char end_;
  };

  // Opens an object or an array: the whole text or the next element of an array or, with a name, the next member of an
  // object.
  Scope object() { return begin('{', '}'); }
  Scope object(std::string_view name) { return begin('{', '}', name); }
  Scope array() { return begin('[', ']'); }
  Scope array(std::string_view name) { return begin('[', ']', name); }

  // Writes a value: a bool, an integer, a Fixed, a text, or an optional of one of these (null if it has no value).
  template <class T>
  void element(const T& value) {
    separate(", ");
    append(value);
  }
  template <class T>
  void member(std::string_view name, const T& value) {
    separate(", ");
    append_name(name);
    append(value);
  }

  // Writes the array of value(row) for each row, without spaces. Tables are written as one array for each column: one
  // object for each row would take several times the space.
  template <class Rows, class Value>
  void column(std::string_view name, const Rows& rows, Value value) {
    const Scope scope = array(name);
    for (const auto& row : rows) {
      separate(",");
      append(value(row));
    }
  }
  template <class Rows>
  void column(std::string_view name, const Rows& rows) {
    column(name, rows, [](const auto& row) { return row; });
  }

  // Returns the text with a newline at its end. Call it once. Pre: every scope has been destroyed.
  [[nodiscard]] std::string take() { return std::move(text_) + "\n"; }

 private:
  Scope begin(char begin, char end) {
    separate(before_scope_);
    text_ += begin;
    is_first_ = true;
    return Scope(*this, end);
  }
  Scope begin(char begin, char end, std::string_view name) {
    separate(before_scope_);
    append_name(name);
    text_ += begin;
    is_first_ = true;
    return Scope(*this, end);
  }
  void end(char end) {
    text_ += end;
    is_first_ = false;
  }
  void separate(std::string_view separator) {
    if (!is_first_) text_ += separator;
    is_first_ = false;
  }
  void append_name(std::string_view name) {
    append(name);
    text_ += ": ";
  }

  void append(bool value) { text_ += value ? "true" : "false"; }
  void append(std::unsigned_integral auto value) { append_number(std::uint64_t{value}); }
  void append(std::signed_integral auto value) { append_number(std::int64_t{value}); }
  void append_number(std::uint64_t value);
  void append_number(std::int64_t value);
  void append(Fixed number);
  void append(std::string_view text);
  void append(const std::string& text) { append(std::string_view(text)); }
  void append(const char* text) { append(std::string_view(text)); }
  template <class T>
  void append(const std::optional<T>& value) {
    if (value) {
      append(*value);
    } else {
      text_ += "null";
    }
  }

  const std::string_view before_scope_;
  std::string text_;
  bool is_first_ = true;  // of the innermost object or array
};

}  // namespace stalloc::tool
