"""Judging a target in a child process, so that whatever its code does is a finding and not the end of the run.

`parent` and `child` are the two ends of the pipe; `ops` and `accounting` are the tiers' sides in the parent,
`ops_child` and
`accounting_child` in the child. The parent's modules import neither torch nor triton.
"""
