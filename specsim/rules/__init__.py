"""What must hold of a scheduler, whatever engine it is of: a file a concern, a class a rule.

A rule is its statement, its check and defects that it finds, together. `specsim.world.rule` says what it reads and when
it is evaluated; `table` has all of them, in the order in which one is broken because another is.
"""
