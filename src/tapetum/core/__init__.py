"""The nouns of the engine: plain records and pure functions, standard library only."""
