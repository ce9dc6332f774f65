"""The engine: requests in, text out. `engine.py` is the loop, `service.py` and `llm.py` are its two fronts."""
