"""`/v1/responses`: chat in the words of OpenAI's newer API."""

from tapetum.server.responses.route import routes as routes
