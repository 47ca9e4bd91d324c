"""Files: reading, locks, replacement in one step, journals, flushing, digests."""
