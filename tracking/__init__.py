"""Where results are kept and seen: a projection of the records, never a source of them."""
