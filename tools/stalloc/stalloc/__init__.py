# SPDX-License-Identifier: Apache-2.0
"""Device memory without fragmentation: the part of stalloc that programs in Python may use. No program has to.

    stalloc.library_path()            the library to preload
    stalloc.statistics()              what stalloc has served so far in this process
    stalloc.subprocess_environment()  a context in which subprocesses are started under stalloc
"""

from stalloc.api import library_path, statistics, subprocess_environment
from stalloc.installation import version as _version

__all__ = ["library_path", "statistics", "subprocess_environment"]
__version__ = _version()
