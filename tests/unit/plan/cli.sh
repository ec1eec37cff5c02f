#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command as a person meets it: exit codes, one line on stderr, JSON, files replaced only by complete ones.
#   plan_cli.sh STALLOC-PLAN MAKE-SEEDS
# TEST_EMULATOR, where it is set, runs the programs of a cross-build (tests/CMakeLists.txt).
set -u
TEST_EMULATOR=${TEST_EMULATOR-}
tool=$1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
$TEST_EMULATOR "$2" "$dir" || exit 1
cd "$dir" || exit 1
failed=0

# expect CODE STDERR-LINES ARGUMENT...: runs the command; its output is in out and err.
expect() {
  code=$1 lines=$2
  shift 2
  $TEST_EMULATOR "$tool" "$@" >out 2>err </dev/null
  got=$? got_lines=$(wc -l <err)
  if [ "$got" -ne "$code" ] || [ "$got_lines" -ne "$lines" ]; then
    echo "FAILED: stalloc-plan $*: exit $got (expected $code), $got_lines lines on stderr (expected $lines)"
    cat err
    failed=1
  fi
}
# says FILE TEXT: the file of the last run holds the text.
says() {
  grep -qF -- "$2" "$1" || {
    echo "FAILED: no '$2' in: $(cat "$1")"
    failed=1
  }
}

expect 0 0 --help
says out "stalloc run --plan plan.fb"
expect 0 0 --version
says out "stalloc-plan "

expect 0 0 late.fb -o late.plan
says out "  late frees    7 count as early as in most steps"
says out ", without late frees"
expect 0 0 check late.fb late.plan
expect 0 0 late.fb --whole-run -o late.plan
grep -q "late frees" out && echo "FAILED: late frees in the plan of a whole run" && failed=1
expect 0 0 check late.fb late.plan
expect 0 0 loop.fb -o loop.plan
says out "steady state"
says out "utilization"
says out "written to loop.plan"
expect 0 0 check loop.fb loop.plan
says out "sound"
expect 0 0 show loop.plan
says out "in stitched views"
for class in "static: the same size in each repetition" "one-off: before or behind" "persistent: lives through"; do says out "$class"; done
expect 0 0 show loop.plan --json
for key in granularity handles views placements '"view"' '"offset"' '"lower"' '"upper"'; do says out "$key"; done
expect 0 0 show loop.fb
says out "ended in order"
expect 0 0 show --json killed.fb
says out '"closed": false'
expect 0 0 show --events loop.fb
for key in modules stacks time_ns address kind flags; do says out "\"$key\": ["; done
expect 0 0 report loop.fb
for key in curves peak native_peak plan all_requests; do says out "\"$key\": {"; done
says out '"plan_source": null'
expect 0 0 report loop.fb loop.plan
says out '"plan_source": "loop.fb"'
expect 0 0 report two_devices.fb
expect 0 0 report requests.csv
says out '"recorded": false'
expect 0 0 killed.fb --dry-run
says out "was killed"
expect 0 0 loop.fb --dry-run --summary json
for key in requests peak_live_bytes physical_bytes stitched_views handles estimated_startup_ms plan_seconds; do says out "\"$key\": "; done
expect 0 0 loop.fb --summary json
says out '"beginning_only": false'
expect 0 0 loop.fb --whole-run --dry-run
says out "all requests are planned"
expect 0 0 two_devices.fb -o two.plan
expect 0 0 show two.plan --json
says out '"devices": ['
expect 0 0 check two_devices.fb two.plan
expect 0 0 requests.csv -o requests.plan --granularity 4k --handle-cap 1m --streams isolate
expect 0 0 check requests.csv requests.plan
expect 0 0 show requests.csv
expect 0 0 requests.csv --contiguous --seconds 0.1 --dry-run
says out "above the bound"
expect 0 0 requests.csv --contiguous --seconds 0 --summary json
says out '"gap_bytes": '

# Many ranks: a folder of plans, one for equal ranks, and the others planned when one trace is bad.
expect 0 0 rank_0.fb rank_1.fb rank_2.fb -o plans
says out " like 0"
says out "different from all others: rank 2"
says out "worst rank: "
says out "saved: native less"
for rank in 0 1 2; do expect 0 0 check rank_$rank.fb plans/plan.$rank.fb; done
expect 0 0 rank_0.fb rank_1.fb --summary json
says out '"same_as": "0"'
says out '"worst_rank": '
says out '"native_bytes": '
expect 0 0 loop.fb -o one/
if grep -qF "like 0" out; then
  echo "FAILED: one rank shares no plan: $(cat out)"
  failed=1
fi
expect 0 0 check loop.fb one/plan.3.fb
# What the traces of ranks lack is said as for a single one.
head -c 20000 rank_1.fb >cut_1.fb
expect 0 0 rank_0.fb cut_1.fb killed.fb --accept-truncated --dry-run
says out "note: rank 1: the file stops inside chunk 6: the 6 whole chunks before it were used, and "
says out "note: rank 3: the recorded process was killed, or still runs (no closing chunk)"
expect 0 0 rank_0.fb cut_1.fb --accept-truncated --summary json
says out '"rank": "0", "source": "rank_0.fb", "plan": null, "error": null, "closed": true, '
says out '"rank": "1", "source": "cut_1.fb", "plan": null, "error": null, "closed": false, '
expect 0 0 cut_1.fb --accept-truncated -o cut.plan
says out "note: the file stops inside chunk 6"
expect 0 0 check cut_1.fb cut.plan --accept-truncated
says out "note: the file stops inside chunk 6"
# Pipes, which can be read only once: several, and one into a folder.
cat rank_2.fb | { cat rank_0.fb | $TEST_EMULATOR "$tool" /dev/stdin /dev/fd/3 rank_1.fb -o piped >out 2>err; } 3<&0
says out "3 of 3 ranks planned"
for rank in 0 1 2; do expect 0 0 check rank_$rank.fb piped/plan.$rank.fb; done
cat rank_0.fb | $TEST_EMULATOR "$tool" /dev/stdin -o piped_alone >out 2>err
says out "1 of 1 ranks planned"
expect 0 0 check rank_0.fb piped_alone/plan.0.fb
echo nothing >trace.3.fb
expect 1 1 rank_0.fb trace.3.fb rank_2.fb -o others
says err "trace.3.fb"
says out "2 of 3 ranks planned"
expect 0 0 check rank_2.fb others/plan.2.fb
[ ! -e others/plan.3.fb ] || {
  echo "FAILED: a plan of a bad trace"
  failed=1
}
expect 1 1 rank_0.fb rank_1.fb -o loop.plan
says err "loop.plan"
expect 2 1 rank_0.fb ./rank_0.fb -o plans
says err "leave one of them out"
expect 1 2 trace.3.fb ./trace.3.fb --dry-run
says out "0 of 2 ranks planned"
if grep -qF "100.00 %" out; then
  echo "FAILED: nothing was planned, and is used to the full: $(cat out)"
  failed=1
fi
rm trace.3.fb
cp alone.fb trace.7.fb
expect 0 0 alone.fb trace.7.fb requests.csv -o alone
says out "stalloc run --plan alone/plan.alone.fb -- ..."
for plan in alone 7 requests; do expect 0 0 show alone/plan.$plan.fb; done

# Plans of other requests, damaged and foreign files.
expect 1 1 check requests.csv loop.plan
expect 1 1 check loop.fb two.plan
expect 1 1 check requests.plan loop.fb
expect 1 1 report loop.fb two.plan
says err "two.plan: not sound for loop.fb"
expect 1 1 report loop.plan
expect 1 1 report loop.fb loop.fb
expect 1 1 show --events requests.csv
expect 1 1 show --events loop.plan
expect 1 1 missing.fb -o out.plan
says err "missing.fb"
expect 1 1 . -o out.plan
: >empty.fb
expect 1 1 empty.fb -o out.plan
for bytes in 1 3 7; do
  head -c $bytes loop.fb >short.fb
  expect 1 1 short.fb -o out.plan
  says err "short.fb: too short for a trace, a plan or a CSV"
done
head -c 700 loop.fb >cut.fb
expect 1 1 cut.fb -o out.plan
says err "whole chunks"
head -c 6000 loop.fb >cut.fb
expect 1 1 cut.fb -o out.plan
expect 0 0 cut.fb --dry-run --accept-truncated
says out "the file stops inside chunk"
{
  cat killed.fb
  head -c 64 /dev/zero
} >zeros.fb
for command in "--dry-run" "show" "compare"; do
  expect 1 1 $command zeros.fb
  says err "zeros.fb: chunk"
  says err "whole chunks before it are readable"
  expect 0 0 $command zeros.fb --accept-truncated
  says out "is not of a trace"
  says out "64 bytes"
done
head -c 300 loop.plan >cut.plan
expect 1 1 show cut.plan
expect 1 1 show "$tool"
# No device has served such a request, so there are no figures, whoever is thought to have served it.
expect 0 0 shared.fb -o shared.plan
expect 0 0 report shared.fb shared.plan
for command in "--dry-run" "compare" "report"; do
  expect 1 1 $command shared_huge.fb
  says err "shared_huge.fb: the requests need more memory than any device has"
done
expect 1 1 report shared_huge.fb shared.plan
says err "shared_huge.fb: the requests need more memory than any device has"
expect 1 2 shared_huge.fb shared_huge.fb --dry-run
says out "0 of 2 ranks planned"
printf 'id,lower,upper,size\n0,1,2,x\n' >bad.csv
expect 1 1 bad.csv -o out.plan
says err "bad.csv: line 2: size is not a whole number"
expect 1 1 loop.fb -o missing/out.plan
expect 1 2 nope bad.csv -o new
expect 1 2 shared_huge.fb nope -o new
[ -e new ] && echo "FAILED: a folder for plans of which none was made" && failed=1
expect 1 1 nope loop.fb -o new
ls new/plan.* >/dev/null || { echo "FAILED: no plan in the new folder" && failed=1; }
for size in 1000 3m 2t 8388608t; do
  for command in "loop.fb --dry-run" "compare loop.fb"; do
    expect 2 1 $command --granularity $size
    says err "--granularity: must be a power of two from 512 bytes to 1 TiB"
  done
done
expect 0 0 compare loop.fb --granularity 1t
expect 1 1 loop.fb --dry-run --handle-cap 1m
says err "must be at least a page, which has 2097152 bytes"
printf '\200\004K\001.' >snapshot.pickle
expect 1 1 snapshot.pickle -o out.plan
says err "stalloc snapshot"
printf '\3757zXZ\000rest' >loop.fb.xz
expect 1 1 show loop.fb.xz
says err "xz -dk"
gzip -c loop.fb >loop.fb.gz
for command in "--dry-run" "show" "compare" "report"; do
  expect 1 1 $command loop.fb.gz
  says err "loop.fb.gz: it is compressed; unpack it first: gzip -dk FILE"
done
cp loop.plan huge
truncate -s 1000G huge # by zeros, none of which is on the disk
expect 1 1 show huge
says err "too large"
rm huge
[ ! -e out.plan ] || {
  echo "FAILED: a failed run left a plan"
  failed=1
}

# A plan is replaced as a whole, and a failed run leaves the old one.
cp loop.plan keep.plan
expect 1 1 bad.csv -o keep.plan
cmp -s loop.plan keep.plan || {
  echo "FAILED: a failed run changed the plan"
  failed=1
}
# Names out of files and of files do not control the terminal.
escape=$(printf 'a\033[31m\nb.csv')
printf 'id,lower,upper,size\n0,0,1,512\n' >"$escape"
expect 0 0 show "$escape"
says out "requests: a?[31m?b.csv"
expect 0 0 compare "$escape"
says out "a?[31m?b.csv, device 0"
expect 0 0 show "$escape" --json
says out '"source": "a\u001b[31m\u000ab.csv"'
expect 1 1 check "$escape" loop.plan
says err "a?[31m?b.csv"
expect 0 0 show none.fb
says out "no requests"

# A link to a file that is not there yet stays a link, and so do links to links.
ln -s new.plan link
ln -s link link.to.link
expect 0 0 loop.fb -o link.to.link
if [ ! -L link.to.link ] || [ ! -L link ] || ! cmp -s new.plan loop.plan; then
  echo "FAILED: a link that led nowhere was not followed"
  failed=1
fi
ln -s ring ring
expect 1 1 loop.fb -o ring
for left in *.tmp*; do
  [ ! -e "$left" ] || {
    echo "FAILED: $left is left"
    failed=1
  }
done

# Wrong usage.
expect 2 1
expect 2 1 loop.fb
expect 2 1 loop.fb -o a.plan --dry-run
expect 2 1 loop.fb -o a.plan --nonsense
expect 2 1 loop.fb -o a.plan --summary yaml
expect 2 1 loop.fb -o a.plan --streams maybe
expect 2 1 loop.fb -o a.plan --contiguous --handle-cap 2m
for arguments in "-o never.fb" "--dry-run" "--summary json" "--streams isolate" "--contiguous" "loop.fb" "loop.fb -o never.fb"; do
  for command in "check loop.fb loop.plan" "show loop.fb" "compare loop.fb" "report loop.fb"; do
    expect 2 1 $arguments $command
    says err " is for planning, and ${command%% *} makes no plan: "
  done
done
expect 0 0 --accept-truncated show loop.fb
for size in lots "" -1 -1k 1.5m "64 k" 0x1000 18446744073709551616 16777216t; do
  for option in "loop.fb -o a.plan --granularity" "loop.fb -o a.plan --handle-cap" "compare loop.fb --granularity" \
    "requests.csv --dry-run --contiguous --capacity"; do
    expect 2 1 $option "$size"
    says err "'$size' is no size: bytes, or a number with k, m, g or t"
  done
done
for seconds in -1 -0.5 nan inf 1e7 soon ""; do expect 2 1 loop.fb --dry-run --contiguous --seconds "$seconds"; done
for option in --granularity --handle-cap; do
  expect 2 1 loop.fb -o a.plan $option 0
  says err "must not be 0"
done
expect 2 1 compare loop.fb --granularity 0k
for output in - /dev/stdout out; do
  expect 2 1 loop.fb -o $output
  says err "standard output"
done
if [ -e /dev/full ]; then
  for arguments in --help --version "show --help"; do
    if $TEST_EMULATOR "$tool" $arguments >/dev/full 2>err; then
      echo "FAILED: stalloc-plan $arguments succeeded without an output"
      failed=1
    fi
  done
fi
expect 2 1 loop.fb --dry-run --handle-cap 1
says err "must be at least a page"
expect 2 1 loop.fb --dry-run --granularity 4m --handle-cap 1m
expect 2 1 show
expect 2 1 check loop.fb

exit $failed
