// SPDX-License-Identifier: Apache-2.0
// Catch2 2 (Debian 12) and 3 (Ubuntu 24.04) under one include.
#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#else
#include <catch2/catch.hpp>
#endif
