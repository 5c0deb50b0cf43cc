"""The simulated engine: an overlap scheduler, a device that computes on content, and the accounting seam between them.

Imports neither torch nor triton, and knows nothing of releases.
"""
