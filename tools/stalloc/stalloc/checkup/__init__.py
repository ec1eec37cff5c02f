# SPDX-License-Identifier: Apache-2.0
"""What `stalloc doctor` looks at: each module checks one kind of thing and returns findings."""
