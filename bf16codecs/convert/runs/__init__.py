"""Make runs of checkpoints, append steps to them, and undo appends."""
