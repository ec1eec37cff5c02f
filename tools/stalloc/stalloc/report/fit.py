"""Does a run fit a card, and with how much room? The page asks the same of other cards (fit.js)."""


def rows(device, card=None):
    """For each allocator: what is left of a card when it holds what it does, and what passes it by has its memory too.
    Empty where no card is known."""
    card = card or device["total_bytes"]
    if not card:
        return []
    return [{"allocator": held["allocator"], "card_bytes": card,
             "room_bytes": card - held["held_bytes"] - device["outside_peak_bytes"]}
            for held in device["allocators"]]
