"""The slow twins of the reference: every operation once more, obvious instead of fast, as a second witness.

One file for each of the reference's, and in it a function NAME_loops with the signature of NAME. They work through
lists, dicts and for loops, one request, node or token at a time, and do not check their arguments.
"""
