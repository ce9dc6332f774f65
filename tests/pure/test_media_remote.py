"""Which URLs are taken, which places are allowed, and at which addresses."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.errors import ConfigError, MediaError, MediaForbidden
from tapetum.media.remote import MAX_URL, Origin, RemotePolicy, is_public, parse_url


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("https://example.com", Origin("https", "example.com", 443), b"/"),
        ("HTTPS://EXAMPLE.com:443/A%2fb?c=%2B&d#e", Origin("https", "example.com", 443), b"/A%2fb?c=%2B&d"),
        ("http://127.0.0.1:8123/x.png", Origin("http", "127.0.0.1", 8123), b"/x.png"),
        ("https://a_b-c.example:1/", Origin("https", "a_b-c.example", 1), b"/"),
        ("https://example.com?x=1", Origin("https", "example.com", 443), b"/?x=1"),
        ("https://[2606:4700::0001]/x", Origin("https", "2606:4700::1", 443), b"/x"),
        (
            "https://xn--bcher-kva.example/ü?ü",
            Origin("https", "xn--bcher-kva.example", 443),
            b"/%C3%BC?%C3%BC",
        ),
        ("https://example.com/a//../b;c=1?q=a+b&r='\"<>", Origin("https", "example.com", 443), None),
    ],
)
def test_urls(url, origin, path):
    target = parse_url(url)
    assert target.origin == origin
    assert target.path == (path or b"/a//../b;c=1?q=a+b&r='\"<>"), "as the client wrote it"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/x",
        "//example.com/x",
        "ftp://example.com/x",
        "httpſ://example.com/x",  # folds to https where letters beyond ASCII do
        "https:/example.com/x",
        "https:example.com",
        "https://",
        "https:///x",
        "https://user@example.com/x",
        "https://user:pass@example.com/x",
        "https://example.com@127.0.0.1/x",
        "https://example.com:80@127.0.0.1/",
        "https://example.com\\@127.0.0.1/x",
        "https://127.0.0.1\\.example.com/",
        "https://exa mple.com/",
        " https://example.com/",
        "https://example.com/a b",
        "https://example.com/\r\nHost: inner",
        "https://example.com/\x00",
        "https://example.com/\t",
        "https://example.com./x",
        "https://localhost./x",
        "https://.example.com/",
        "https://a..b/",
        "https://-a.example/",
        "https://a-.example/",
        "https://example.com:/x",
        "https://example.com:0/x",
        "https://example.com:65536/x",
        "https://example.com:8_0/x",
        "https://example.com:+80/x",
        "https://example.com:٨٠/x",
        "https://2130706433/x",
        "https://0x7f000001/",
        "https://0x7f.1/x",
        "https://0177.0.0.1/x",
        "https://127.1/",
        "https://127.0.0.1.0/",
        "https://1.2.3.256/",
        "https://127.0.0.0x1/",
        "https://①②⑦.0.0.1/",
        "https://bücher.example/",
        "https://ｅｘａｍｐｌｅ.com/",
        "https://example。com/",
        "https://exa\u00admple.com/",
        "https://%65xample.com/",
        "https://example.com%2f@inner/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://[::1/",
        "https://::1/",
        "https://[127.0.0.1]/",
        "https://[v1.x]/",
        "https://[]/",
        "https://[::1]x/",
        "https://" + "a" * 64 + ".example/",
        "https://" + "a." * 130 + "example/",
        "https://example.com/" + "a" * MAX_URL,
    ],
)
def test_urls_that_are_refused(url):
    with pytest.raises(MediaError) as caught:
        parse_url(url)
    assert caught.value.http_status == 400
    assert len(str(caught.value)) < 200


@given(st.text(max_size=40))
def test_any_text_is_a_plain_url_or_refused(text):
    for url in (text, "https://" + text, "http://a.example" + text, "https://a.example:" + text):
        try:
            target = parse_url(url)
        except MediaError:
            continue
        assert target.path.startswith(b"/") and target.path.isascii()
        assert not set(target.path) & set(b"\\ \r\n\t\0#")
        assert not set(target.origin.host) & set("@/\\%?# ")
        assert parse_url(target.url) == target, "one reading"


PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450::1"]
INNER = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.1.1", "169.254.169.254", "172.16.0.1", "192.0.0.9",
    "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1",
    "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1", "fc00::1", "fd12::1", "fe80::1", "fec0::1",
    "ff02::1", "fe80::1%eth0", "2606:4700::1%1",
]  # fmt: skip


@pytest.mark.parametrize("address", INNER)
def test_inner_addresses(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", [*PUBLIC, "::ffff:8.8.8.8"])
def test_public_addresses(address):
    assert is_public(ipaddress.ip_address(address))


def policy(*allowed: str, addresses=("8.8.8.8",)) -> RemotePolicy:
    return RemotePolicy(allowed, lambda host, port: addresses)


def allows(rules: RemotePolicy, url: str) -> bool:
    try:
        rules.check(parse_url(url))
    except MediaForbidden:
        return False
    return True


def test_an_origin_is_allowed_exactly():
    rules = policy("http://127.0.0.1:8123", "https://a.example")
    assert allows(rules, "http://127.0.0.1:8123/x?y")
    assert allows(rules, "https://A.example:443/x")
    for url in (
        "http://127.0.0.1:8124/",
        "http://127.0.0.1/",
        "https://127.0.0.1:8123/",
        "http://localhost:8123/",
        "http://a.example/",
        "https://a.example:8443/",
        "https://b.a.example/",
    ):
        assert not allows(rules, url), url


def test_a_host_is_allowed_by_https_alone():
    rules = policy("a.example")
    assert allows(rules, "https://a.example/x") and allows(rules, "https://a.example:8443/x")
    for url in (
        "http://a.example/x",
        "https://b.a.example/",
        "https://a.example.org/",
        "https://aa.example/",
    ):
        assert not allows(rules, url), url


def test_any_host_is_any_host_by_https():
    rules = policy("*")
    assert allows(rules, "https://whatever.example/") and allows(rules, "https://8.8.8.8/")
    assert not allows(rules, "http://whatever.example/")


@pytest.mark.parametrize("address", INNER)
def test_a_host_with_one_inner_address_has_none(address):
    origin = Origin("https", "a.example", 443)
    for rules in (policy("*", addresses=["8.8.8.8", address]), policy("a.example", addresses=[address])):
        assert rules.addresses(origin) == []


def test_an_origin_may_be_inner_and_others_not():
    rules = policy("http://a.example:80", "*", addresses=["127.0.0.1", "::1"])
    assert rules.addresses(Origin("http", "a.example", 80)) == ["127.0.0.1", "::1"]
    assert rules.addresses(Origin("https", "a.example", 443)) == []


def test_an_unknown_host_is_like_an_inner_one():
    def unknown(host, port):
        raise OSError("no such name")

    rules = RemotePolicy(["*"], unknown)
    assert rules.addresses(Origin("https", "a.example", 443)) == []
    assert policy("*", addresses=["no address"]).addresses(Origin("https", "a.example", 443)) == []


@pytest.mark.parametrize(
    "entry",
    ["", "a b", "**", "*.example.com", "example.com/x", "example.com:443", "https://a.example/x", "ftp://a.example",
     "https://u@a.example", "bücher.example", "https://a.example?x"],
)  # fmt: skip
def test_entries_that_are_refused(entry):
    with pytest.raises(ConfigError, match="--allowed-media-domains"):
        RemotePolicy([entry])


def test_entries_as_people_write_them():
    rules = policy("https://a.example/", "B.example", "http://[::1]:80")
    assert allows(rules, "https://a.example/x") and allows(rules, "https://b.example/")
    assert allows(rules, "http://[::1]/x") and allows(rules, "http://[0:0::1]:80/x")
    assert RemotePolicy([]).is_off and not rules.is_off
