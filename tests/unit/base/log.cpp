// SPDX-License-Identifier: Apache-2.0
// Log lines have no effect on the program, whatever its standard error has become.
#include "interpose/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <functional>
#include <string>

#include "catch.h"
#include "child.h"
#include "folder.h"

using namespace stalloc;

namespace {

// Runs `check` in a child process, which logs to the standard error that it begins with.
bool holds_in_child(const std::function<bool()>& check) {
  return test::holds_in_child([&check] {
    log::remember_standard_error();
    return check();
  });
}

// The next file that is opened is standard error.
bool becomes_standard_error(int descriptor) { return descriptor == STDERR_FILENO; }

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_pending(int signal) {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, signal) == 1;
}

bool is_blocked(int signal) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 1;
}

// Standard error is a pipe; the end to read from.
int pipe_as_standard_error() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(2);
  close(ends[1]);
  log::remember_standard_error();
  return ends[0];
}

}  // namespace

TEST_CASE("a pipe that nobody reads from any more raises nothing") {
  CHECK(holds_in_child([] {
    close(pipe_as_standard_error());
    log::warn("lost");
    return !is_pending(SIGPIPE) && !is_blocked(SIGPIPE);
  }));
}

TEST_CASE("what the program had pending stays pending") {
  CHECK(holds_in_child([] {
    sigset_t pipe_signal;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
    close(pipe_as_standard_error());
    log::warn("lost");
    if (is_pending(SIGPIPE)) return false;
    raise(SIGPIPE);
    log::warn("lost");
    return is_pending(SIGPIPE) && is_blocked(SIGPIPE);
  }));
}

TEST_CASE("a full pipe does not block the program") {
  CHECK(holds_in_child([] {
    const int reader = pipe_as_standard_error();
    for (int i = 0; i < 2000; ++i) log::warn("{:>100}", i);
    std::array<char, 4096> text{};
    while (read(reader, text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
      if (fcntl(reader, F_SETFL, O_NONBLOCK) != 0) return false;
    }
    log::warn("there is room again");
    const ssize_t bytes = read(reader, text.data(), text.size());
    return bytes > 0 && std::string(text.data(), static_cast<std::size_t>(bytes)).find("again") != std::string::npos;
  }));
}

TEST_CASE("a file of the program's that has the number of standard error gets no line") {
  const test::Folder folder;
  const std::string path = folder / "data";
  CHECK(holds_in_child([&path] {
    close(STDERR_FILENO);
    if (!becomes_standard_error(open(path.c_str(), O_WRONLY | O_CREAT, 0600))) return false;
    log::warn("not here");
    return text_of(path).empty();
  }));
  CHECK(holds_in_child([] {
    close(STDERR_FILENO);
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) return false;
    if (!becomes_standard_error(ends[0])) return false;
    log::warn("not here");
    char byte = 0;
    return read(ends[1], &byte, 1) < 0;
  }));
}

TEST_CASE("standard error that was redirected gets its lines") {
  const test::Folder folder;
  const std::string path = folder / "log";
  CHECK(holds_in_child([&path] {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(file, STDERR_FILENO);
    log::warn("appended");
    return text_of(path) == "stalloc: warning: appended\n";
  }));
  const std::string both = folder / "both";
  CHECK(holds_in_child([&both] {
    const int file = open(both.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    log::warn("beside the output");
    return text_of(both) == "stalloc: warning: beside the output\n";
  }));
}

TEST_CASE("a text from outside begins no line and does not control the terminal") {
  const test::Folder folder;
  const std::string path = folder / "log";
  CHECK(holds_in_child([&path] {
    dup2(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    log::warn("{} is \xc3\xa9", "x\nstalloc: forged\x1b[31m\xc2\x9b\xff\xe2\x80\xae");
    return text_of(path) == "stalloc: warning: x?stalloc: forged?[31m??? is \xc3\xa9\n";
  }));
}

TEST_CASE("a closed standard error loses lines and nothing else") {
  CHECK(holds_in_child([] {
    close(STDERR_FILENO);
    errno = 7;
    log::warn("lost");
    return errno == 7;
  }));
}
