"""The command line of ropepatch: parse, call the library, render."""
