"""Tiers: how one kind of thing of a target is tested, in child processes, so that whatever the target's code does is a
finding and not the end of the run.

What is true of every tier is written once: `messages` (what crosses the pipe), `process` (the child), `checking` (one
check: restarts, findings, ended processes), `replaying` (replay, twice, shrink), `child` (the child's entry). What a
tier is, and how one is added, says `tier`; which there are, `registry`.
"""
