# SPDX-License-Identifier: Apache-2.0
# What a child of a shell finds in its environment when it runs without the library.
env -u LD_PRELOAD env | sort
env -u LD_PRELOAD sh -c 'env | sort'
