"""`python -m syncd`."""

from syncd.cli.app import main

main()
