// SPDX-License-Identifier: Apache-2.0
// Where the requests of a thread belong in the steps of the other threads, when their position varies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/steps/runs.h"

namespace stalloc::plan {

//   others     |-------step-------|-------step-------|-------step-------|
//   thread          a  b              a b              a     b
//   place           a  b               a  b               a  b             the earliest of all steps
//
// `made_at`: for each request of the thread, how many requests the others had made before it; `tokens`: equal numbers
// for equal requests; `others`: the stretch that repeats in the others' requests; `steps`: how many of their periods a
// repetition of the thread has. Returns for each request its place, counted like `made_at`: the same in every
// repetition, never later than where it was made, and in the thread's order. Outside the stretch a request keeps its
// own place. Empty if the thread does not repeat with the others, or drifts from them by a whole repetition. Pure.
std::optional<std::vector<std::int64_t>> find_places(const std::vector<std::int64_t>& made_at,
                                                     const std::vector<std::uint32_t>& tokens, const Run& others,
                                                     std::size_t steps);

}  // namespace stalloc::plan
