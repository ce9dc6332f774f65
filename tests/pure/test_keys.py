"""API keys: what a key file may say, whose tenant a key is of, and how much one may ask."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.config import ServerConfig
from tapetum.core.errors import ConfigError
from tapetum.server import auth
from tapetum.server.auth import accounts_of
from tapetum.server.errors import RateLimited
from tapetum.server.quota import Quota
from tapetum.server.serving import TENANT, tenant_of

FILE = """# keys of this house
first  acme
second acme rps=5 concurrent=4   # the batch machine

third.key#with=signs  other.tenant-2 concurrent=1
\t
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(FILE, encoding="utf-8")
    path.chmod(0o600)
    return path


def tenants(*keys: str, file: Path | None = None) -> list[str]:
    config = ServerConfig(api_keys=keys, api_key_file=None if file is None else str(file))
    return [account.tenant for account in accounts_of(config)]


def test_keys_of_a_file_may_share_a_tenant(file: Path) -> None:
    accounts = accounts_of(ServerConfig(api_key_file=str(file)))
    assert [account.tenant for account in accounts] == ["acme", "acme", "other.tenant-2"]
    assert [account.quota is not None for account in accounts] == [False, True, True]
    assert len({account.digest for account in accounts}) == 3


def test_a_key_by_itself_is_a_tenant_of_its_own_for_good() -> None:
    first, second = tenants("one", "two")
    assert first != second
    assert tenants("two", "one") == [second, first]
    assert first.startswith("key:"), "a name no file can give"
    assert "one" not in first


def test_tenants_and_salts_never_run_together() -> None:
    salted = [
        tenant_of({TENANT: tenant}, salt) for tenant in ("a", "ab", "a1:b") for salt in (None, "b", "bc")
    ]
    assert len(set(salted)) == len(salted)
    assert tenant_of({}, None) == ""
    assert tenant_of({}, "salt") == "salt"


def test_keys_come_from_both_places(file: Path) -> None:
    assert tenants("extra", file=file)[1:] == ["acme", "acme", "other.tenant-2"]
    assert tenants() == []


def test_no_key_is_kept(file: Path) -> None:
    told = repr(accounts_of(ServerConfig(api_keys=("hush",), api_key_file=str(file))))
    assert not any(key in told for key in ("hush", "first", "second", "third.key"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lonely", ["has one word", "key tenant"]),
        ("key te:nant", ["tenant is 'te:nant'"]),
        (f"key {'t' * 65}", ["tenant is", "64"]),
        ("key tenant rps", ["rps is ''"]),
        ("key tenant fast", ["'fast' is no limit", "rps=N or concurrent=N"]),
        ("key tenant rps=5 rps=6", ["'rps=6' is no limit", "each once"]),
        ("key tenant rps=", ["rps is ''", "0.001 to 1e+06"]),
        ("key tenant rps=nan", ["rps is 'nan'"]),
        ("key tenant rps=0", ["rps is '0'"]),
        ("key tenant rps=-1", ["rps is '-1'"]),
        ("key tenant concurrent=0.5", ["concurrent is '0.5'", "1 to 1e+06"]),
        ("first tenant", ["the key is there before"]),
    ],
)
def test_a_bad_line_is_named_by_its_number_and_not_by_its_key(
    file: Path, line: str, words: list[str]
) -> None:
    file.write_text(FILE + line, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        accounts_of(ServerConfig(api_key_file=str(file)))
    message = caught.value.message
    assert f"{file}, line 7" in message
    assert all(word in message for word in words), message
    assert "first" not in message


def test_a_key_is_given_once_in_both_places_together(file: Path) -> None:
    with pytest.raises(ConfigError, match="line 3: the key is there before"):
        tenants("second", file=file)


@pytest.mark.parametrize("content", [b"", b"# nothing\n\n", b"\xff\xfe\x00"])
def test_a_file_without_keys_is_none(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"has no keys|cannot be read"):
        tenants(file=file)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        tenants(file=tmp_path / "missing")


def test_a_file_all_can_read_leaves_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tenants(file=file)
        assert caplog.text == ""
        file.chmod(0o604)
        tenants(file=file)
    assert "can be read by every user" in caplog.text


def test_every_key_is_compared_in_full_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    plainly = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(len(one))
        return plainly(one, other)

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    accounts = accounts_of(ServerConfig(api_keys=("a", "b", "c" * 100)))
    for key in (b"a", b"c" * 100, b"", b"nobody's"):
        compared.clear()
        found = auth.account_of(accounts, key)
        assert compared == [32, 32, 32]
        assert (found is not None) == (key in (b"a", b"c" * 100))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_lets_a_second_of_requests_in_at_once_and_then_evenly() -> None:
    clock = Clock()
    quota = Quota(rps=4, clock=clock)
    for _ in range(4):
        quota.take()
    with pytest.raises(RateLimited) as caught:
        quota.take()
    assert caught.value.wait_s == pytest.approx(0.25)
    assert (caught.value.http_status, caught.value.code) == (429, "rate_limit_exceeded")
    clock.now += 0.26
    quota.take()
    with pytest.raises(RateLimited):
        quota.take()


def test_a_rate_below_one_still_lets_one_in() -> None:
    clock = Clock()
    quota = Quota(rps=0.1, clock=clock)
    quota.take()
    with pytest.raises(RateLimited) as caught:
        quota.take()
    assert caught.value.wait_s == pytest.approx(10)
    clock.now += 10
    quota.take()


def test_as_many_at_a_time_as_allowed() -> None:
    quota = Quota(concurrent=2)
    quota.take()
    quota.take()
    with pytest.raises(RateLimited, match="2 requests of this key are running"):
        quota.take()
    quota.release()
    quota.take()


def test_who_is_refused_for_others_that_run_spends_nothing_of_the_rate() -> None:
    quota = Quota(rps=2, concurrent=1, clock=Clock())
    quota.take()
    for _ in range(5):
        with pytest.raises(RateLimited, match="running"):
            quota.take()
    quota.release()
    quota.take()


@given(st.floats(0.01, 50), st.lists(st.floats(0, 3), max_size=60))
def test_no_stretch_of_time_has_more_than_its_rate_and_one_second_more(rps: float, gaps: list[float]) -> None:
    clock = Clock()
    quota = Quota(rps=rps, clock=clock)
    taken: list[float] = []
    for gap in gaps:
        clock.now += gap
        try:
            quota.take()
        except RateLimited:
            continue
        taken.append(clock.now)
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= (taken[last] - start) * rps + max(rps, 1) + 1e-6
