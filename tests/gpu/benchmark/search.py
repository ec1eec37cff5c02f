# SPDX-License-Identifier: Apache-2.0
"""Finds the largest size that fits. It only decides which sizes are tried, and uses no CUDA."""

LEAP = 4  # a size is at most so many times the largest that fits so far


def resolution(size):
    """How near two sizes must be for the search between them to end: 1 %, or one."""
    return max(1, size // 100)


class Search:
    """Tries sizes by `attempt(size)`, which returns the bytes that were live at the peak, or None when memory ran out.

    It first tries 1, half of `guess`, and `guess`. The live bytes of these show what a larger size would need, and so
    how large a size could be under an allocator that wastes nothing of `capacity` bytes (0: not known). That size is
    tried next, but at most four times the largest that fits so far, and again from there: as long as the peak is in the
    optimizer's step, live bytes do not show what a larger size needs. If it does not fit, smaller sizes follow in growing
    strides, and if it does, larger ones; then the middle between the largest that fits and the smallest that does not.
    Nothing above `most` is tried.
    """

    def __init__(self, attempt, capacity, most, guess=2):
        self.attempt, self.capacity, self.most, self.guess = attempt, capacity, most, guess
        self.tried = {}  # size: bytes or None

    def fits(self, size):
        if size not in self.tried:
            self.tried[size] = self.attempt(size)
        return self.tried[size] is not None

    def bound(self, low):
        """The size at which live bytes alone would reach the capacity, on a line through the two largest sizes that fit;
        at most four times the largest."""
        *_, first, second = [0, 0, *sorted(size for size, live in self.tried.items() if live is not None)]
        more = (self.tried[second] - self.tried[first]) / (second - first) if first else 0
        if not self.capacity or more <= 0:
            return 2 * low
        return min(second + int((self.capacity - self.tried[second]) / more), LEAP * low)

    def largest(self):
        """The largest size that fits; 0: not even 1 does."""
        if not self.fits(1):
            return 0
        low, high = 1, self.most + 1  # the first fits; the second does not, or is not wanted
        for size in (self.guess // 2, self.guess):
            if low < size < high:
                low, high = (size, high) if self.fits(size) else (low, size)
        size = min(max(self.bound(low), low + 1), high - 1)
        while size == LEAP * low and self.fits(size):
            low = size
            size = min(max(self.bound(low), low + 1), high - 1)
        stride = resolution(size)
        while low < size < high:
            if self.fits(size):
                low = size
                size = min(size + stride, self.most) if high > self.most else high
            else:
                high = size
                size = max(size - stride, low)
            stride *= 2
        while high - low > resolution(low):
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(middle) else (low, middle)
        return low
