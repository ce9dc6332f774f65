"""`python -m tapetum` is `tapetum`."""

from tapetum.cli import main

main(prog_name="tapetum")
