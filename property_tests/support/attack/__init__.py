"""The adversary: a seeded fuzzer of what specsim reads.

Run it with `make attack`, or see `python -m property_tests.support.attack --help`.

Kinds of input: replay files, stores of campaigns, wheels in the cache, sources of targets, and options with the
surroundings of the process. An input is made from (seed, kind, index) alone, in a folder of its own, and one command
is run on it. `oracle` says what must hold of every run:

- the exit code is one that is documented, and 2 comes with a sentence;
- nothing printed is a traceback or a character that a terminal obeys;
- the run ends within its limit, and leaves no process behind;
- nothing outside the folder is made, changed or removed, no input is changed, and no temporary file stays;
- what is damaged is never a finding: a file that cannot be read says nothing about its target.

Most runs are made in a fork of a process that has everything imported, some as a user makes them; each class of
failure is made once more as a user makes it, and counts only if it shows there too.

What this does not do: attack through the network, through Ray or Redis, on a GPU, or `specsim dev compile` (minutes);
stay in the folder by force: a target that means harm can do what its user can (SECURITY.md).
"""
