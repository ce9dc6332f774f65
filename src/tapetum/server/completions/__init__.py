"""`/v1/completions`: prompts that the caller wrote whole."""

from tapetum.server.completions.route import routes as routes
