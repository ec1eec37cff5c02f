#include "tests/conformance/checks.h"

namespace stalloc::conformance {

const std::vector<Check>& all_checks() {
  static const std::vector<Check> checks{
      {"steps", steps},
      {"sizes", sizes},
      {"random-programs", random_programs},
      {"late-readers", late_readers},
      {"plain-requests", plain_requests},
      {"ends-of-streams", ends_of_streams},
      {"thread-streams", thread_streams},
      {"graphs", graphs},
      {"capture-beside", capture_beside},
      {"pools", pools},
      {"trim", trim},
      {"questions", questions},
      {"misuse", misuse},
      {"sharing", sharing},
      {"other-context", other_context},
      {"out-of-memory", out_of_memory},
      {"global-capture", global_capture, /*own_process=*/true},
      {"reset", reset},
  };
  return checks;
}

}  // namespace stalloc::conformance
