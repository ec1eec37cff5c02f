# SPDX-License-Identifier: Apache-2.0
# A fresh repository with the git named by $1: two commits, a branch, a merge, a clone by file, a repack.
set -eu
git=$1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1
"$git" init -q -b main repository
cd repository
echo one > file
"$git" add file
"$git" commit -q -m "first commit"
"$git" checkout -q -b side
echo two >> file
"$git" commit -q -am "second commit"
"$git" checkout -q main
"$git" merge -q --no-edit --no-ff side
"$git" repack -q -a -d
"$git" clone -q . ../copy
cd ../copy
"$git" log --format='%H %s'
"$git" status --short
if "$git" show nothing 2> /dev/null; then exit 1; fi
