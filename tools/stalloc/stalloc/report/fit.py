# SPDX-License-Identifier: Apache-2.0
"""Computes whether a run fits a card, and how much room is left. The page does the same for other cards (fitTable in
tables.js)."""


def rows(device, card=None):
    """For each allocator, how much of a card is left beside what it holds and what requests that bypass it take, and how
    much would be left if it gave back all that it can. Empty if no card is known."""
    card = card or device["total_bytes"]
    if not card:
        return []
    left = card - device["outside_peak_bytes"]
    return [{"allocator": held["allocator"], "card_bytes": card, "room_bytes": left - held["held_bytes"],
             "most_room_bytes": left - least_bytes(device, held)}
            for held in device["allocators"]]


def least_bytes(device, held):
    """The least that an allocator needs for the run. On a full card PyTorch's native allocator gives back the segments in
    which nothing is in use. The others need their live bytes; what else they can give back is not simulated. A plan's
    memory stays."""
    peak = device["native_peak"]
    if held["allocator"] == "native":
        return peak["held_bytes"] - peak["free"]["whole_segment"]["bytes"]
    return held["held_bytes"] if held["allocator"] == "planned" else held["live_bytes"]
