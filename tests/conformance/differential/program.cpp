// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/differential/program.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/conformance/differential/alone.h"

namespace stalloc::conformance {
namespace {

using Actors = std::vector<std::unique_ptr<Actor>>;

constexpr int kRounds = 3;
constexpr std::size_t kDeeds = 70;  // actions of an actor in a round
constexpr std::size_t kAlone = 5;   // actions between two rounds, while all other actors rest
constexpr std::size_t kActors = 4;  // at most

void run_together(const Actors& actors, std::size_t deeds) {
  std::vector<std::thread> threads;
  for (const auto& actor : actors) {
    threads.emplace_back([&actor = *actor, deeds] {
      try {
        actor.enter();
        for (std::size_t i = 0; i < deeds; ++i) actor.act();
        actor.leave_thread();
      } catch (const std::exception& error) {
        actor.log.line(std::string("FAILED: ") + error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each actor gives a tensor to the next actor of its device, which has other streams.
void hand_over(const World& world, const Actors& actors) {
  const std::size_t apart = world.machines.size();
  for (std::size_t i = 0; i + apart < actors.size(); ++i) {
    actors[i]->enter();
    const Actor::Tensor tensor = actors[i]->give();
    if (tensor.number != 0) actors[i + apart]->admit(tensor);
  }
}

void reset_device(Actor& by, const Actors& actors) {
  const auto each_of_the_device = [&](void (Actor::*action)()) {
    for (const auto& actor : actors) {
      if (&actor->machine() != &by.machine()) continue;
      actor->enter();
      (*actor.*action)();
    }
  };
  each_of_the_device(&Actor::prepare_reset);
  by.enter();
  Alone(by).reset();
  each_of_the_device(&Actor::begin_again);
}

void run_alone(Actor& actor) {
  try {
    actor.enter();
    actor.finish();
    Alone(actor).act();
  } catch (const std::exception& error) {
    actor.log.line(std::string("FAILED: ") + error.what());
  }
}

// Leaves no memory behind, whatever the program did.
void free_everything(const Actors& actors) {
  for (const auto& actor : actors) {
    try {
      actor->enter();
      actor->free_all();
    } catch (const std::exception& error) {
      actor->log.line(std::string("FAILED: ") + error.what());
    }
  }
}

}  // namespace

void run_program(World& world, const ProgramOptions& options, std::FILE* to) {
  std::mt19937_64 random(options.seed * 1000);
  Actors actors;
  const std::size_t count = 1 + random() % kActors;
  for (const auto& machine : world.machines) {
    machine->join();
    machine->keep_all(machine->default_pool(), random() % 2 == 0);
  }
  if (!options.resets) {  // a reset ends a context's events
    for (const auto& machine : world.machines) {
      machine->join();
      for (CUevent& event : world.events.emplace_back()) {
        machine->must(machine->cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      }
    }
  }
  for (std::size_t i = 0; i < count; ++i) actors.push_back(std::make_unique<Actor>(world, i, options.seed));
  for (int round = 0; round < kRounds; ++round) {
    run_together(actors, kDeeds / 2 + random() % kDeeds);
    hand_over(world, actors);
    for (std::size_t i = 0; i < kAlone; ++i) run_alone(*actors[random() % actors.size()]);
    if (options.resets && random() % 2 == 0) reset_device(*actors[random() % actors.size()], actors);
  }
  free_everything(actors);
  for (const auto& events : world.events) {
    for (const CUevent event : events) world.machines.front()->cuda.cuEventDestroy(event);
  }
  world.events.clear();
  const std::string prefix = fmt::format("program {}", options.seed);
  for (const auto& actor : actors) actor->log.write(to, prefix);
  world.tensors += std::uint64_t{1} << 20;
}

}  // namespace stalloc::conformance
