"""Whose a request is: the account of its client, and the salt with which the client keeps caches apart.

Both together are the tenant of caches and keys. Fairness goes by the account, or new salts would bring new turns; where
the server knows no keys, nothing but the salt tells clients apart.
"""

from __future__ import annotations


def salted(account: str, salt: str) -> str:
    """Different for different pairs where there is an account."""
    return f"{len(account)}:{account}{salt}" if account else salt


def account_of(tenant: str) -> str:
    """The account in what `salted` has made, else the tenant itself."""
    length, colon, rest = tenant.partition(":")
    is_number = length.isascii() and length.isdigit() and len(length) < 10
    return rest[: int(length)] if colon and is_number and 0 < int(length) <= len(rest) else tenant
