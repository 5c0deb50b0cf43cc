"""All programs of a launch of a Triton kernel at once, over NumPy."""
