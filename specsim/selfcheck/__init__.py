"""Historic bugs as one-line changes of the reference engine: what schedules must find to be worth their time.

The engine itself names no mutant. A mutant is applied to its source when the module is loaded, in a process of its own.
"""
