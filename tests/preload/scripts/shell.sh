# SPDX-License-Identifier: Apache-2.0
# Pipes, substitution, background jobs, a trap and an exit status of its own.
set -u
words=$(echo "3 words here" | tr a-z a-z)
echo "$words"
false | true
echo "pipe: ${PIPESTATUS[*]}"
(exit 9)
echo "subshell: $?"
{ echo late > file; } &
wait $!
cat file
sort <<< $'b\na'
trap 'echo trapped; exit 3' TERM
kill -TERM $$
echo not reached
