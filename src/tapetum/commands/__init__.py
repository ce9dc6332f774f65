"""Commands of the terminal that are clients of the HTTP application: `chat` and `run-batch`."""
