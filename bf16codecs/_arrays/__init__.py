"""Reading chunks of arrays from any container; each step is implemented once.

To read a selection, `indexing` takes it apart, `grid` says which chunks it touches, `blocks` which
blocks of these, `formats` and `frames` how they are stored, and `storage` where their bytes lie.
`array` puts that together; `views`, `bases` and `on_device` build on arrays.
"""
