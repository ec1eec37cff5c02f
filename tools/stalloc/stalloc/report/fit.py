# SPDX-License-Identifier: Apache-2.0
"""Computes whether a run fits a card, and how much room is left. The page does the same for other cards (fitTable in
tables.js)."""


def rows(device, card=None):
    """For each allocator, how much of a card is left beside what it holds and what requests that bypass it take. Empty
    if no card is known."""
    card = card or device["total_bytes"]
    if not card:
        return []
    return [{"allocator": held["allocator"], "card_bytes": card,
             "room_bytes": card - held["held_bytes"] - device["outside_peak_bytes"]}
            for held in device["allocators"]]
