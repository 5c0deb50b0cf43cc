"""vLLM's own scheduler in its own engine loop, unmodified, on a CPU: imports, configuration, executor and model around
it, and what the scheduler tier needs of it.
"""
