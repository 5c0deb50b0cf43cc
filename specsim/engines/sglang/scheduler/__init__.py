"""A release's own scheduler, whole and unmodified, over a virtual device.

`boot.boot` builds it in a process of its own; `python -m specsim.engines.sglang.scheduler VERSION` shows that it works.
"""
