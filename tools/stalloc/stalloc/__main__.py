# SPDX-License-Identifier: Apache-2.0
"""`python -m stalloc` is the `stalloc` command."""

import sys

from stalloc.cli import main

sys.exit(main())
