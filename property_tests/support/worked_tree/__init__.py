"""The picture of docs/reference.md: one tree, drafted, verified greedily and by sampling, compacted.

`example` runs the page's code blocks and reads off what they computed; `picture` draws it.
"""
