"""What every other part uses: buffers, data types, limits, messages, paths, threads."""
