// SPDX-License-Identifier: Apache-2.0
// fork, vfork, posix_spawn and exec, from the main thread and from another while a third holds a lock.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

extern char** environ;

namespace {

int status_of(pid_t child) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int forked(int code) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    std::printf("in the child\n");
    std::exit(code);  // through atexit handlers and destructors
  }
  return status_of(child);
}

int forked_by_signal() {
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGKILL);
    _exit(0);
  }
  return status_of(child);
}

int vforked() {
  const pid_t child = vfork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", "echo from sh; exit 5", static_cast<char*>(nullptr));
    _exit(127);
  }
  return status_of(child);
}

int spawned(char** environment) {
  const char* arguments[] = {"/bin/sh", "-c", "echo spawned; exit 6", nullptr};
  pid_t child = -1;
  if (posix_spawn(&child, "/bin/sh", nullptr, nullptr, const_cast<char**>(arguments), environment) != 0) return -1;
  return status_of(child);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "again") == 0) {
    std::printf("executed again\n");
    return 7;
  }
  std::printf("fork %d\n", forked(3));
  std::printf("signal %d\n", forked_by_signal());
  std::fflush(stdout);
  std::printf("vfork %d\n", vforked());
  std::fflush(stdout);
  std::printf("spawn %d\n", spawned(environ));
  std::fflush(stdout);
  char* empty[] = {nullptr};
  std::printf("spawn without environment %d\n", spawned(empty));

  std::mutex busy;
  const std::lock_guard<std::mutex> held(busy);
  int from_thread = 0;
  std::thread([&from_thread] { from_thread = forked(4); }).join();
  std::printf("fork in a thread %d\n", from_thread);
  std::fflush(stdout);
  execl(argv[0], argv[0], "again", static_cast<char*>(nullptr));
  return 8;
}
