"""Text without pictures: small talk that the model learns, system prompts, English for the tokenizer."""

from __future__ import annotations

_HELLO = "Hello! Show me an image and ask me about it."
_WHO = "I am Tapetum Mini, a small vision-language model."
_WHAT = "I can read text, tables and charts, and describe simple shapes."
_SHOW = "Please show me an image."
_ONLY = "I can only answer questions about images."

TALK = [
    ("Hello", _HELLO),
    ("Hi", _HELLO),
    ("Hello!", _HELLO),
    ("Who are you?", _WHO),
    ("What are you?", _WHO),
    ("What is your name?", _WHO),
    ("What can you do?", _WHAT),
    ("Help", _WHAT),
    ("What is the total?", _SHOW),
    ("Read the text.", _SHOW),
    ("Describe the image.", _SHOW),
    ("What do you see?", _SHOW),
    ("How are you?", "I am fine. Show me an image and ask me about it."),
    ("Thank you", "You are welcome."),
    ("Thanks!", "You are welcome."),
    ("Tell me a story.", _ONLY),
    ("Write a poem.", _ONLY),
    ("你好", _HELLO),
]

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "Answer briefly.",
    "You answer questions about images.",
]

_ENGLISH = """\
The quick brown fox jumps over the lazy dog. This is a small model that looks at pictures and answers short questions \
about them.
It can read words, numbers, prices and dates on signs, tickets and receipts. Please tell me what you see in the \
picture and where it is.
If the thing you ask for is not in the picture, the answer says that there is no such thing. Which of the two \
pictures shows the larger object?
A table has rows and columns; each cell holds a value. A chart shows how values change over time. The user asks and \
the assistant answers.
I am not sure, but I think that it would be better to wait for the next train, because the last one was late and \
there were many people.
We went to the market in the morning and bought bread, milk and apples; then we walked home along the river and had \
dinner with our friends.
They said that the meeting should start at nine and end before noon, so everyone could get back to their work. Could \
you help me with this?
The system prompt tells the assistant how to answer. You are a helpful assistant. Please answer with one word or a \
short sentence only."""
ENGLISH = _ENGLISH.splitlines()
