"""The largest size that fits: no CUDA here, only which sizes are tried."""


def resolution(size):
    """How near two sizes must be to end the search between them: 2 %, or one."""
    return max(1, size // 50)


class Search:
    """Tries sizes by `attempt(size)`, which returns the bytes that were live at the peak, or None when memory ran out.

    First 1, half of `guess` and `guess`. What was live tells what more would cost, and so how far even an allocator could
    get that wastes nothing of `capacity` bytes (0: not known): that is tried next. Where it does not fit, smaller sizes
    follow in growing strides, and where it does, larger ones; then the middle between the largest that fits and the
    smallest that does not. Nothing above `most` is tried.
    """

    def __init__(self, attempt, capacity, most, guess=2):
        self.attempt, self.capacity, self.most, self.guess = attempt, capacity, most, guess
        self.tried = {}  # size: bytes or None

    def fits(self, size):
        if size not in self.tried:
            self.tried[size] = self.attempt(size)
        return self.tried[size] is not None

    def bound(self, low):
        """The size at which live bytes alone would reach the capacity, by the line through the two largest that fit."""
        *_, first, second = [0, 0, *sorted(size for size, live in self.tried.items() if live is not None)]
        more = (self.tried[second] - self.tried[first]) / (second - first) if first else 0
        if not self.capacity or more <= 0:
            return 2 * low
        return second + int((self.capacity - self.tried[second]) / more)

    def largest(self):
        """0: not even 1 fits."""
        if not self.fits(1):
            return 0
        low, high = 1, self.most + 1  # fits; does not, or is not wanted
        for size in (self.guess // 2, self.guess):
            if low < size < high:
                low, high = (size, high) if self.fits(size) else (low, size)
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
