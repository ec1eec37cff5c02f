// SPDX-License-Identifier: Apache-2.0
// Facts about this process: its rank, its host, how it was started, and file names made from them.
//
// The arguments, the launcher's variables and the working folder are copied while the library is loaded, since a
// program may later overwrite its arguments and variables (setproctitle does) and change its working folder. After
// that, all functions are thread-safe. Those that return std::string may throw std::bad_alloc; errors of the system
// give the documented default.
#pragma once

#include <string>
#include <string_view>

namespace stalloc {

// Copies the launcher's variables and the working folder. Call it once, while the library is being loaded.
void remember_start() noexcept;
// Copies the arguments, up to 64 KiB of them. Call it once, while the library is being loaded.
void remember_arguments(int count, const char* const* arguments) noexcept;

// The rank that the launcher gave this process (torchrun, Slurm, Open MPI, MPICH, PMIx); empty without a launcher. The
// current value of each variable is used, since the program may have set it, or else the remembered one.
std::string launcher_rank();
std::string host_name();
// The arguments joined by spaces: the remembered ones, else the current ones; empty if they cannot be read.
std::string command_line();

std::string program_path();  // of the executable; empty if it cannot be read

// "a/trace.fb" and ".3" give "a/trace.3.fb"; a name without an extension gets it at the end.
std::string insert_before_extension(std::string path, std::string_view text);

// Fills a file-name template: %r rank ("0" without a launcher), %p process id, %h host, %% a percent sign; other
// percent signs stay. With a launcher and no %r or %p in the template the rank is inserted before the extension
// (trace.fb -> trace.3.fb), so that two ranks never name one file.
std::string expand_path(std::string_view name);

// `path` relative to the folder in which the process was started, as an absolute path if that folder is known. Absolute
// and empty paths are returned unchanged.
std::string absolute_path(std::string path);

}  // namespace stalloc
