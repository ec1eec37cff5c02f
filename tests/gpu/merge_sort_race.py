#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows a data race in CUB's merge sort that any allocator can bring to light (https://github.com/NVIDIA/cccl/issues/5297).

The merge sort of CCCL 3.0.1, which comes with CUDA 13.0 and is in PyTorch 2.11, may read its scratch memory before it has
been written. That is harmless while this memory still holds what the same sort left there, and ends with an illegal
instruction or an illegal address when something else was there. Here some threads, each on a stream of its own, coalesce a
sparse vector over and over, and before each sort write other data to memory that the sort will probably get. Prints the
name, the number of elements, how many sorts were made, how many indices were wrong, and the errors. The race needs a busy
GPU of compute capability 9.0 or newer: run several of these processes at the same time, with and without stalloc preloaded.
It is no test of stalloc.
"""

import argparse
import threading
import time

JUNK = 0x7F7F7F7F7F7F7F
JUNK_SIZES = (1.0, 1.002, 1.005, 1.01, 1.05, 0.5, 0.5)  # of what the sort needs as scratch memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, help="how long to sort")
    parser.add_argument("name", help="is printed")
    parser.add_argument("threads", type=int)
    parser.add_argument("elements", type=int)
    options = parser.parse_args()
    import torch  # after --help
    threads, elements = options.threads, options.elements
    index = torch.randperm(elements, device="cuda").unsqueeze(0)
    vector = torch.sparse_coo_tensor(index, torch.ones(elements, device="cuda"), (elements,), check_invariants=False)
    want = torch.arange(elements, device="cuda").unsqueeze(0)
    torch.cuda.synchronize()
    end = time.time() + options.seconds
    wrong, sorts, errors = [0] * threads, [0] * threads, []

    def work(thread):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                different = torch.zeros((), device="cuda", dtype=torch.int64)
                while time.time() < end and not errors:
                    for i in range(20):
                        junk = [torch.full((int(elements * 2 * size),), JUNK, device="cuda", dtype=torch.int64)
                                for size in JUNK_SIZES]
                        del junk
                        coalesced = vector.coalesce()
                        sorts[thread] += 1
                        if i % 10 == 0:
                            different += (coalesced.indices() != want).sum()
                        del coalesced
                wrong[thread] = int(different.item())
            torch.cuda.synchronize()
        except Exception as error:
            errors.append(str(error).splitlines()[0])

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(options.name, elements, "done", sum(sorts), "bad", wrong, "failed", errors, flush=True)


if __name__ == "__main__":
    main()
