"""`python -m mead` is the command `mead`."""

from mead.cli import main

main()
