"""What must hold of a scheduler, whatever engine it is of: a file a concern, a class a rule.

A rule is its statement, its check and defects that it finds, together. `specsim.world.rule` says what it reads and when
it is evaluated; `table` finds all of them, and says which may be broken because others are.
"""
