"""From what a client refers to, to pictures ready to encode: sources, pixels, identity, the worker pool. No torch."""
