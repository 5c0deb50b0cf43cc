"""The step loop of the simulator, compiled: the same modules as extension modules, which mypyc makes of their sources.

Optional. `specsim dev compile` builds them into the cache, under a key of all their sources and of this Python; whoever
imports specsim with that key gets them instead of the Python files, and everybody else the Python files. What is in the
cache is whole or not there. SPECSIM_COMPILED=0 turns it off. Digests, findings and replays are those of the Python
files, which stay the reference; mutants always run in Python.

`sources`  which modules are compiled, and what is changed in the copy that mypyc reads
`build`    making them
`finder`   importing them
"""
