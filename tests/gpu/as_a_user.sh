#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a new user does with the wheel on a machine with a GPU and PyTorch, and what it prints: install, doctor, run, record,
# plan, run by the plan, report, in a fresh virtual environment.
#
#   tests/gpu/as_a_user.sh WHEEL [FOLDER]      FOLDER is where it is tried out; a temporary one by default
#
# The first command that fails ends the script with its status.
set -euo pipefail
usage() { sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
if [ "$*" = --help ]; then usage; exit; fi
[ $# -ge 1 ] && [ $# -le 2 ] || { usage >&2; exit 2; }
wheel=$(readlink -f "$1")
train=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/train.py
folder=$(readlink -f "${2:-$(mktemp -d)}")
mkdir -p "$folder"
cp "$train" "$(dirname "$train")/figures.py" "$folder/"
cd "$folder"
unset LD_PRELOAD "${!STALLOC_@}"

run() {
  local begin=$SECONDS
  printf '\n$ %s\n' "$*"
  "$@" 2>&1
  printf '[%d s]\n' $((SECONDS - begin))
}

run python3 -m venv environment
# The environment uses the PyTorch of the machine's python3, wherever that lies.
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$(echo environment/lib/python*/site-packages)/outer.pth"
PATH=$folder/environment/bin:$PATH
run pip install --no-deps --no-index "$wheel"
options=(--recompute --batch 8 --steps 4)
run stalloc --version
run stalloc doctor
run python train.py "${options[@]}" --json alone.json
run stalloc run -- python train.py "${options[@]}" --json run.json
run stalloc record -- python train.py "${options[@]}" --json record.json
run stalloc plan trace.fb -o plan.fb
run stalloc run --plan plan.fb -- python train.py "${options[@]}" --json planned.json
run stalloc report trace.fb plan.fb -o report.html
run ls -l report.html trace.fb plan.fb
