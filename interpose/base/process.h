// Who this process is: its rank, its host, and the file names that follow from them.
#pragma once

#include <string>
#include <string_view>

namespace stalloc {

// The rank that the launcher gave this process (torchrun, Slurm, Open MPI, MPICH, PMIx), empty without one.
std::string launcher_rank();
std::string host_name();
std::string command_line();  // arguments joined by spaces; empty when unreadable

std::string program_path();  // of the executable; empty when unreadable

// "a/trace.fb" and ".3" give "a/trace.3.fb"; a name without an extension gets it at the end.
std::string insert_before_extension(std::string path, std::string_view text);

// Fills a file-name template: %r rank ("0" without a launcher), %p process id, %h host, %% a percent sign; other
// percent signs stay. With a launcher and no %r or %p in the template the rank is inserted before the extension
// (trace.fb -> trace.3.fb), so that two ranks never name one file.
std::string expand_path(std::string_view name);

}  // namespace stalloc
