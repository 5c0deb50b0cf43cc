"""SGLang as a target: where its functions live, how they are called, and which guards its configuration has.

Everything that names a release, a file of it, or one of its names is in this folder.
"""
