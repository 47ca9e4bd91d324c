"""Published runs: stores to which a training job adds steps, and which other programs follow."""
