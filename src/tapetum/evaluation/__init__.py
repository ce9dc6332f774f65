"""What `tapetum evaluate` asks (`cases`), does to pictures (`conditions`) and counts (`report`). No torch."""
