"""Reading chunks of arrays, whatever holds them: the only copy of each step.

To read a selection, `indexing` takes it apart, `grid` says which chunks it touches, `blocks` which
blocks of these, `formats` and `frames` how they are stored, and `sources` where their bytes lie.
`array` puts that together, and `views`, `bases` and `on_device` use arrays for others.
"""
