"""The commands that `specsim.cli` does not hold itself, and what commands share."""
