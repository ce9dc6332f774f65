"""The cases of public_faults, a file for each place where servers go wrong, and what they are written with."""
