// SPDX-License-Identifier: Apache-2.0
// Facts about this process: its rank, its host, how it was started, and file names made from them.
//
// How it was started is copied when the library is loaded: a program may write over its arguments and variables later
// (setproctitle does), and change its working folder.
#pragma once

#include <string>
#include <string_view>

namespace stalloc {

// Copies the launcher's variables and the working folder. Call when the library is loaded.
void remember_start() noexcept;
// Copies the arguments, up to 64 KiB of them. Call when the library is loaded.
void remember_arguments(int count, const char* const* arguments) noexcept;

// The rank that the launcher gave this process (torchrun, Slurm, Open MPI, MPICH, PMIx), empty without one. Each
// variable is read as it is now, since the program may have set it, or else as it was remembered.
std::string launcher_rank();
std::string host_name();
std::string command_line();  // arguments joined by spaces, as remembered, else as they are now; empty when unreadable

std::string program_path();  // of the executable; empty when unreadable

// "a/trace.fb" and ".3" give "a/trace.3.fb"; a name without an extension gets it at the end.
std::string insert_before_extension(std::string path, std::string_view text);

// Fills a file-name template: %r rank ("0" without a launcher), %p process id, %h host, %% a percent sign; other
// percent signs stay. With a launcher and no %r or %p in the template the rank is inserted before the extension
// (trace.fb -> trace.3.fb), so that two ranks never name one file.
std::string expand_path(std::string_view name);

// `path` seen from the folder that the process was started in, as far as that is known; absolute and empty ones as they
// are.
std::string absolute_path(std::string path);

}  // namespace stalloc
