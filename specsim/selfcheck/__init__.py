"""Historic bugs as one-line changes of the model: what the simulator must find to be worth its time.

The model itself names no mutant. A mutant is applied to the source of one module when that module is loaded, in a
process of its own.
"""
