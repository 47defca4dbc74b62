"""`python -m ropepatch_cli` is `ropepatch`."""

from ropepatch_cli.app import main

main()
