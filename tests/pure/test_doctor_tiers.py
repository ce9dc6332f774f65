"""`tapetum doctor --tiers`: what it says of tiers that are well, full, old, broken and away, and that it harms none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tapetum.cache.tiers_disk import DiskStore
from tapetum.cli import main
from tests.tier_entries import entry, name_of, whole


def doctor(*words: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--tiers", *words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three entries, one of another version and one broken."""
    store = DiskStore(tmp_path / "cache", 2**30)
    for number in range(3):
        made = entry(number, 2**16, kind="kv" if number == 2 else "features")
        store.write(name_of(made), [whole(made)], 0.5)
    old = entry(3)
    store.write(name_of(old), [whole(old).replace(b"tapetum entry 1", b"tapetum entry 0")], 0.5)
    store.write(name_of(entry(4)), [b"what is this"], 0.5)
    return tmp_path / "cache"


def test_a_tier_that_is_well(folder: Path) -> None:
    url = f"disk:{folder}?max=1GiB"
    done = doctor("--feature-tier", "host:?max=1GiB", "--feature-tier", url, "--kv-tier", url)
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[1] == "✓ 2 tiers usable"
    assert "holds 136 KiB of 1 GiB 5 entries" not in lines, (
        "blocks of the file system are not what entries say"
    )
    assert f"disk:{folder}" in lines
    assert "for encoded pictures and what their files are known by, keys and values" in lines
    assert "state reachable, writable given up on after 2 s" in lines
    assert "keys, values 64.5 KiB 1 entry format 1" in lines
    (pictures,) = (line for line in lines if line.startswith("pictures"))
    assert "4 entries of 4 looked at:" in pictures
    for words in ("2 format 1", "1 format 0", "1 broken"):
        assert words in pictures
    assert sum(line.startswith("speed write") for line in lines) == 2
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_its_json_tells_the_same(folder: Path) -> None:
    done = doctor("--feature-tier", f"disk:{folder}?max=1GiB", "--json")
    assert done.exit_code == 0, done.output
    (tier,) = json.loads(done.stdout)["tiers"]
    assert (tier["reachable"], tier["problem"], tier["remarks"]) == (True, "", [])
    assert tier["max_bytes"] == 2**30
    assert tier["num_bytes"] == sum(each["num_bytes"] for each in tier["entries"])
    assert {each["kind"]: each["num_entries"] for each in tier["entries"]} == {"features": 4, "kv": 1}
    assert set(tier["probe"]) == {"write_s", "read_s", "remove_s"}


def test_nothing_is_lost_by_looking(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = doctor("--feature-tier", f"disk:{folder}?max=100KB")
    assert done.exit_code == 0
    assert "a server would remove" in done.stdout, "whose limit is below what is there"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_limit_above_the_disk_is_told(tmp_path: Path) -> None:
    done = doctor("--feature-tier", f"disk:{tmp_path}?max=1000TiB")
    assert done.exit_code == 0
    assert "the disk has room for" in done.stdout


def test_a_tier_that_cannot_be_used_is_told_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("--feature-tier", "host:", "--feature-tier", f"disk:{tmp_path}/file")
    done = doctor(*words)
    assert done.exit_code == 2
    assert "✗ 2 tiers  1 of 2 usable" in done.stdout
    assert "make it writable or name another folder" in done.stdout
    assert done.stderr.startswith(f"tapetum: {tmp_path}/file cannot be written to")
    tiers = json.loads(doctor(*words, "--json").stdout)["tiers"]
    assert [tier["reachable"] for tier in tiers] == [True, False]


def test_without_a_tier_there_is_nothing_to_tell() -> None:
    done = doctor()
    assert done.exit_code == 2
    assert "no tier is named; add --feature-tier or --kv-tier" in done.stderr
    assert "a tier begins with" in doctor("--kv-tier", "floppy:/a").stderr
