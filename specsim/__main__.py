"""`python -m specsim` is the command `specsim`."""

from specsim.cli import main

if __name__ == "__main__":
    main()
