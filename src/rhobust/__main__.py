"""`python -m rhobust` is the console script."""

from rhobust.cli import main

main()
