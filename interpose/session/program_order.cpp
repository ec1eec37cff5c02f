#include "interpose/session/program_order.h"

namespace stalloc::program_order {

constinit serve::EventOrder events;

}  // namespace stalloc::program_order
