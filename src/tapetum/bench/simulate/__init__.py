"""Simulating: a trace of requests against the real scheduler, with a device that only says how long it would take.

Owns the events and the clock, what requests come (`presets`, `trace`), what the device costs (`coefficients`,
`device`), a plain engine to compare with (`baseline`), and what came of it (`outcome`, `report`, `plot`). Scheduling,
caches, admission and the geometry of pictures are those of the engine itself. The same seed gives the same bytes.
"""
