"""The model's own memory: rows, slot allocators and streaming sessions.

These are the side of the accounting seam that an engine's host functions call back, so they are hooked by ledgers that
a target cannot touch. Buffers are `array.array`, which an adapter sees as a tensor without a copy. Imports neither
torch nor triton.
"""
