# SPDX-License-Identifier: Apache-2.0
# Functions by which tools/test, tools/demo and others configure and build. They source this file with `root` set to the
# checkout.
export LC_ALL=C.UTF-8
export CCACHE_BASEDIR=$root  # what was compiled for one build folder serves another one beside it

say() { echo "== $*"; }

# One job for each core, but no more than memory allows at 1.5 GiB for each compiler.
jobs_that_fit() {
  local cores memory_mib fitting
  cores=$(nproc)
  memory_mib=$(($(getconf _PHYS_PAGES) / 1024 * $(getconf PAGE_SIZE) / 1024))
  fitting=$((memory_mib / 1536))
  [ "$fitting" -ge 1 ] || fitting=1
  echo $((cores < fitting ? cores : fitting))
}

# configure PRESET: shows CMake's output only on failure.
configure() {
  local launcher=() output
  if command -v ccache > /dev/null; then launcher=(-D CMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  say "configuring $1"
  output=$(cd "$root" && cmake --preset "$1" "${launcher[@]}" 2>&1) || { echo "$output" >&2; return 1; }
}

# build PRESET [targets...]: builds all targets, or only these.
build() {
  local preset=$1
  shift
  say "building $preset"
  (cd "$root" && cmake --build --preset "$preset" --parallel "$(jobs_that_fit)" ${@+--target "$@"})
}

# build_quietly PRESET [targets...]: the compiler's output goes to build/PRESET/build.log and is shown only on failure;
# meanwhile, on a terminal, one line says how far it is.
build_quietly() {
  local log=$root/build/$1/build.log line
  if ! build "$@" 2>&1 | tee "$log" |
       while IFS= read -r line; do
         case $line in
           "== "*) echo "$line" ;;
           "["*) [ ! -t 1 ] || printf '\r\033[K%s' "${line%%]*}]" ;;
         esac
       done; then
    [ ! -t 1 ] || printf '\r\033[K'
    cat "$log" >&2
    echo "the build failed; its output is above and in $log" >&2
    return 1
  fi
  [ ! -t 1 ] || printf '\r\033[K'
}
