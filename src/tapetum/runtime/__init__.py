"""Runtime: one device carries out one plan at a time. Owns all tensors; decides nothing."""
