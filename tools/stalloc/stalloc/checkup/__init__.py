# SPDX-License-Identifier: Apache-2.0
"""The checks of `stalloc doctor`: each module checks one kind of thing and returns findings."""
