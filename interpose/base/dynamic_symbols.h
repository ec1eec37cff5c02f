// SPDX-License-Identifier: Apache-2.0
// Looks a symbol up in the tables of one module, as dlsym does, but without the dynamic loader's lock.
#pragma once

#include <link.h>

namespace stalloc::loader {

// The address of the function or object of this name that a module defines; null: it defines none. `info` is what
// dl_iterate_phdr passes to its callback, and valid only there. Thread-safe; allocates nothing.
void* find_definition(const dl_phdr_info& info, const char* name) noexcept;

}  // namespace stalloc::loader
