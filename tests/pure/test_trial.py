"""The process in which grammars are tried out: what it says, what it survives, and that it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapetum.assets import MODEL_DIR
from tapetum.core.errors import InvalidParameter
from tapetum.core.request import Grammar
from tapetum.text import trial as trial_module
from tapetum.text.tokenizer import Tokenizer
from tapetum.text.trial import Trials

GOOD = Grammar(kind="json_schema", source='{"type": "object", "properties": {"a": {"type": "integer"}}}')
# The intersection of these has more states than can be counted in a minute.
PATTERNS = [{"type": "string", "pattern": f"^(.*a.{{{width}}}b){{2,}}$"} for width in range(10, 50)]
EXPLODING = Grammar(kind="json_schema", source=json.dumps({"allOf": PATTERNS}), param="response_format")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(MODEL_DIR)


@pytest.fixture
def trials(tokenizer: Tokenizer) -> Iterator[Trials]:
    trials = Trials(tokenizer)
    yield trials
    trials.close()


def is_alive(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_nothing_runs_before_the_first_grammar_or_after_the_last(trials: Trials) -> None:
    assert trials.pid is None
    trials.check(GOOD)
    pid = trials.pid
    assert is_alive(pid)
    trials.close()
    assert trials.pid is None and not is_alive(pid)


def test_a_bad_grammar_is_refused_and_the_process_stays(trials: Trials) -> None:
    trials.check(GOOD)
    pid = trials.pid
    for source, said in [("(", "unclosed group"), ("\ud800", "surrogates"), ("a\n+b|(?!c)", "look-around")]:
        with pytest.raises(InvalidParameter, match=said) as caught:
            trials.check(Grammar(kind="regex", source=source, param="guided_regex"))
        assert caught.value.param == "guided_regex"
    assert trials.pid == pid


def test_a_grammar_that_explodes_takes_only_its_process_along(trials: Trials) -> None:
    started = time.process_time()
    with pytest.raises(InvalidParameter, match="takes more than 1 s") as caught:
        trials.check(EXPLODING)
    assert caught.value.param == "response_format"
    assert time.process_time() - started < 0.5, "the time is spent elsewhere"
    trials.check(GOOD)
    with pytest.raises(InvalidParameter, match="takes more than 1 s"):
        trials.check(EXPLODING)


@pytest.mark.parametrize(("num_bytes", "is_too_much"), [(2**26, False), (2**31, True)])
def test_a_grammar_that_takes_too_much_memory_takes_only_its_process_along(
    trials: Trials, monkeypatch: pytest.MonkeyPatch, num_bytes: int, is_too_much: bool
) -> None:
    """The memory is mapped and never written to, so without the bound it would be had."""
    code = (
        "from mmap import mmap; from tapetum.text import trial; "
        f"trial.check_grammar = lambda *_: mmap(-1, {num_bytes}); trial.main()"
    )
    with monkeypatch.context() as patched:
        patched.setattr(trial_module, "_COMMAND", (sys.executable, "-c", code))
        if is_too_much:
            with pytest.raises(InvalidParameter, match="too much memory") as caught:
                trials.check(EXPLODING)
            assert caught.value.param == "response_format"
        else:
            trials.check(GOOD)
            trials.close()
    trials.check(Grammar(kind="json_object"))


def test_a_process_that_was_killed_is_started_again(trials: Trials) -> None:
    trials.check(GOOD)
    pid = trials.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    trials.check(Grammar(kind="json_object"))
    assert trials.pid != pid


def test_signals_that_stop_a_server_leave_it_to_its_parent(trials: Trials) -> None:
    trials.check(GOOD)
    pid = trials.pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    trials.check(Grammar(kind="json_object"))
    assert trials.pid == pid


def test_what_has_passed_is_not_tried_again(trials: Trials) -> None:
    trials.check(GOOD)
    trials.close()
    trials.check(GOOD)
    assert trials.pid is None
    for number in range(70):
        trials.check(Grammar(kind="choice", source=f'["{number}"]'))
    trials.close()
    trials.check(GOOD)
    assert trials.pid is not None, "the oldest are forgotten"


def test_many_threads_ask_at_once(trials: Trials) -> None:
    verdicts: dict[int, bool] = {}

    def ask(number: int) -> None:
        try:
            trials.check(Grammar(kind="regex", source=f"a{number}" + "(" * (number % 2)))
            verdicts[number] = True
        except InvalidParameter:
            verdicts[number] = False

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {number: number % 2 == 0 for number in range(16)}
