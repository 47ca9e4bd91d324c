"""Making runs of checkpoints, appending to them, and undoing that."""
