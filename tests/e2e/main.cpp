// SPDX-License-Identifier: Apache-2.0
// e2e_host: the training program that the end-to-end tests run, alone, recorded and served. Ends with one line of JSON
// on standard output; exit status 1 when any tensor held wrong data or shared memory with another.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/e2e/events.h"
#include "tests/e2e/leave.h"
#include "tests/e2e/loader.h"
#include "tests/e2e/stress.h"

namespace {

using namespace stalloc;
using namespace stalloc::e2e;

struct Arguments {
  Shape shape;
  std::size_t steps = 6;
  int devices = 1;
  std::string event = "nothing";
  std::size_t event_step = 3;
  std::uint64_t loader = 0;
  bool forget_start = false;
  bool waits = false;
  bool fork_first = false;
  std::vector<std::string> variables;
  bool is_leave = false;
  bool is_stress = false;
  Stress stress;
};

int parse(int argc, char** argv, Arguments& to) {
  CLI::App app{"A training run in miniature", "e2e_host"};
  app.add_option("--steps", to.steps, "number of training steps");
  app.add_option("--seed", to.shape.seed, "seed of the tensors' sizes");
  app.add_option("--layers", to.shape.layers, "number of layers");
  app.add_option("--microbatches", to.shape.microbatches, "number of microbatches in a step");
  app.add_option("--streams", to.shape.streams, "number of streams on each device");
  app.add_option("--devices", to.devices, "number of devices; each has a training of its own");
  app.add_flag("!--no-recompute", to.shape.recompute, "keep every layer's tensors for the backward pass");
  app.add_flag("--backward-thread", to.shape.backward_thread, "the backward pass runs in another thread");
  app.add_flag("--blocking", to.shape.blocking, "streams wait for the legacy stream");
  app.add_option("--event", to.event, "what happens in the middle of the training")
      ->check(CLI::IsMember(event_names()));
  app.add_option("--event-step", to.event_step, "number of the step before which that happens");
  app.add_option("--loader", to.loader,
                 "seed of the moments at which another thread prepares batches; 0: there is no such thread");
  app.add_option("--print-variable", to.variables,
                 "name of an environment variable; the program prints it as it finds it");
  app.add_flag("--wait", to.waits, "wait for the device after each step, and let CUDA's pool keep its memory then");
  app.add_flag("--forget-start", to.forget_start,
               "write over the arguments and the environment, as setproctitle does, and leave the working folder");
  app.add_flag("--fork-first", to.fork_first, "let a child of fork do everything, as the workers of a fork server do");
  CLI::App* const stress = app.add_subcommand("stress", "random requests instead of a training run");
  stress->add_option("--seed", to.stress.seed, "seed of the requests");
  stress->add_option("--lives", to.stress.lives, "seed of when and on which stream they are freed");
  stress->add_option("--requests", to.stress.requests, "number of requests of each thread");
  stress->add_option("--threads", to.stress.threads, "number of threads");
  stress->add_option("--streams", to.stress.streams, "number of streams, including the legacy stream");
  stress->callback([&to] { to.is_stress = true; });
  app.add_subcommand("leave", "ends while a thread maps memory")->callback([&to] { to.is_leave = true; });
  CLI11_PARSE(app, argc, argv);
  return -1;
}

// Forks and returns in the child. The parent does not initialize CUDA, and ends with the child's exit status. It asks
// about memory of the host, as MPI's libraries do that do not know yet whether the program uses CUDA.
void fork_first() {
  int device = 0;
  const auto here = reinterpret_cast<CUdeviceptr>(&device);
  if (cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, here) != CUDA_ERROR_NOT_INITIALIZED) {
    std::exit(3);
  }
  const pid_t child = fork();
  if (child == 0) return;
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) std::exit(3);
  std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
}

// Overwrites the arguments and the environment, which lie one behind the other, and leaves the folder. Only the
// variables that simcuda reads later are kept.
void forget_start(int argc, char** argv, char** envp) {
  std::vector<char*> strings(argv, argv + argc);
  while (*envp != nullptr) strings.push_back(*envp++);
  char* const begin = strings.front();
  char* end = begin;
  std::vector<char*> kept;
  for (char* const string : strings) {
    if (string != end) break;
    end += std::strlen(string) + 1;
    if (std::string_view(string).starts_with("SIMCUDA_")) kept.push_back(strdup(string));
  }
  clearenv();
  for (char* const variable : kept) putenv(variable);
  std::memset(begin, 'x', static_cast<std::size_t>(end - begin));
  std::memcpy(begin, "RANK=77", sizeof "RANK=77");
  if (chdir("/") != 0) std::exit(3);
}

// Otherwise the pool's idle memory is given back whenever the program waits for the device.
void keep_memory_of_pool(int device) {
  cudaMemPool_t pool = nullptr;
  must(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  std::uint64_t everything = ~std::uint64_t{0};
  must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything), "cudaMemPoolSetAttribute");
}

void train(const Arguments& arguments, Host& host) {
  std::deque<Training> runs;
  std::optional<Loader> loader;
  const auto tick = [&loader] {
    if (loader) loader->tick();
  };
  for (int device = 0; device < arguments.devices; ++device) {
    runs.emplace_back(host, arguments.shape, device, tick);
    if (arguments.waits) keep_memory_of_pool(device);
  }
  if (arguments.loader != 0) loader.emplace(host, arguments.loader);
  for (std::size_t step = 0; step < arguments.steps; ++step) {
    StepChange change;
    if (loader) loader->begin_step(runs.front().main_stream());
    if (step == arguments.event_step) {
      must(cudaSetDevice(0), "cudaSetDevice");
      change = happen(arguments.event, host, runs.front());
    }
    for (Training& training : runs) {
      training.step(change);
      if (arguments.waits) must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
  }
}

Host::Figures run(const Arguments& arguments, const replay::Api& api) {
  Host host(api);
  if (arguments.is_stress) {
    run_stress(host, arguments.stress);
  } else {
    train(arguments, host);
  }
  for (int device = 0; device < arguments.devices; ++device) {
    must(cudaSetDevice(device), "cudaSetDevice");
    host.check_all();
  }
  return host.figures();
}

}  // namespace

int main(int argc, char** argv, char** envp) {
  Arguments arguments;
  if (const int status = parse(argc, argv, arguments); status >= 0) return status;
  for (const std::string& name : arguments.variables) {
    const char* value = std::getenv(name.c_str());
    fmt::print("{}={}\n", name, value == nullptr ? "" : value);
  }
  if (arguments.forget_start) forget_start(argc, argv, envp);
  if (arguments.fork_first) fork_first();
  if (arguments.is_leave) leave_while_mapping();
  const auto api = replay::Api::load(replay::Api::Road::Runtime);
  if (!api.ok()) {
    fmt::print(stderr, "e2e_host: {}\n", api.error);
    return 2;
  }
  const Host::Figures figures = run(arguments, api.value);
  SimcudaCounters counters{};
  simcuda_counters(0, &counters);
  fmt::print(
      "{{\"requests\": {}, \"checked\": {}, \"wrong\": {}, \"overlaps\": {}, \"peak_live_bytes\": {}, \"creates\": {}, "
      "\"rdma_creates\": {}, "
      "\"maps\": {}, \"unmaps\": {}, \"set_accesses\": {}, \"handle_peak_bytes\": {}, \"pool_allocs\": {}, \"allocs\": "
      "{}}}\n",
      figures.requests, figures.checked, figures.wrong, figures.overlaps, figures.peak_live_bytes, counters.creates,
      counters.rdma_creates, counters.maps, counters.unmaps, counters.set_accesses, counters.handle_peak_bytes,
      counters.pool_allocs, counters.allocs);
  return figures.wrong == 0 && figures.overlaps == 0 ? 0 : 1;
}
