// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/checks.h"

namespace stalloc::conformance {

const std::vector<Check>& all_checks() {
  static const std::vector<Check> checks{
      {"steps", steps},
      {"sizes", sizes},
      {"random-programs", random_programs},
      {"late-readers", late_readers},
      {"orders-of-events", orders_of_events},
      {"plain-requests", plain_requests},
      {"ends-of-streams", ends_of_streams},
      {"thread-streams", thread_streams},
      {"graphs", graphs},
      {"capture-beside", capture_beside},
      {"trim", trim},
      {"questions", questions},
      {"misuse", misuse},
      {"sharing", sharing},
      {"other-context", other_context},
      {"out-of-memory", out_of_memory},
      // Without the library, a driver was seen to hang or crash in cuMemPoolDestroy of a pool with live memory.
      {"pools", pools, /*own_process=*/true},
      {"global-capture", global_capture, /*own_process=*/true},
      {"hostile-sizes", impossible_sizes, /*own_process=*/true},
      {"hostile-captures", captures, /*own_process=*/true},
      {"hostile-captures-global", captures_global, /*own_process=*/true},
      {"hostile-capture-races", capture_races, /*own_process=*/true},
      {"hostile-waits", waiting, /*own_process=*/true},
      {"hostile-waits-in-contexts", waiting_in_contexts, /*own_process=*/true},
      {"hostile-probes", probes, /*own_process=*/true},
      {"hostile-idle-memory", idle_memory, /*own_process=*/true},
      {"hostile-full-device", full_device, /*own_process=*/true},
      {"hostile-pools", created_pools, /*own_process=*/true},
      {"hostile-peers", peers, /*own_process=*/true},
      {"hostile-peer-copies", peer_copies, /*own_process=*/true},
      {"hostile-peer-frees", peer_frees, /*own_process=*/true},
      {"hostile-peer-plain-free", peer_plain_free, /*own_process=*/true},
      {"hostile-contexts", created_contexts, /*own_process=*/true},
      {"hostile-green-contexts", green_contexts, /*own_process=*/true},
      {"hostile-fault", fault_codes, /*own_process=*/true},
      {"hostile-stale-context", stale_context, /*own_process=*/true},
      {"hostile-first-stream-destroy", first_stream_destroy, /*own_process=*/true},
      {"hostile-first-context-destroy", first_context_destroy, /*own_process=*/true},
      {"hostile-first-primary-reset", first_primary_reset, /*own_process=*/true},
      {"hostile-first-primary-release", first_primary_release, /*own_process=*/true},
      {"hostile-pointers", pointer_attributes, /*own_process=*/true},
      {"hostile-mappings", mappings, /*own_process=*/true},
      {"hostile-leaving", leaving, /*own_process=*/true},
      {"hostile-reset", reset_beside, /*own_process=*/true},
      {"hostile-without-context", without_context, /*own_process=*/true},
      {"hostile-first-captured", first_request_captured, /*own_process=*/true},
      {"reset", reset},
  };
  return checks;
}

}  // namespace stalloc::conformance
