"""Measuring: the same questions to Tapetum and to other servers, over HTTP, with the same checkpoint and threads.

Owns what is asked (`workloads`), how it is timed (`load`, `figures`), when a repeat counts (`guard`), how servers are
started and stopped (`peers`, `launch`), the order of a run (`run`) and what it says (`goals`, `report`, `chart`).
Knows nothing of the engine: Tapetum is one server among the others.
"""
