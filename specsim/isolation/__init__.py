"""Processes that run somebody else's code: how they are started, limited, spoken with and ended.

Nothing here knows what is checked. `processes` starts and ends them, `environment` says what they see of this process'
variables, `limits` how much memory they may take and how many there may be, `frames` carries bytes out of them that
only their own writer can have made, and `phases` says whose code runs: specsim's, or the target's.
"""
