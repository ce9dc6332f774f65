"""`tapetum chat`: what the model is told, what the terminal shows, and what ends an answer but not the talk."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tapetum.assets import SAMPLES_DIR
from tapetum.cli import main
from tapetum.commands.chat import show
from tapetum.commands.conversation import paths_of, split_dropped
from tapetum.core.config import ServerConfig
from tests.cpu.server_kit import Script, TestServer, eventually, files

PICTURE = SAMPLES_DIR / "ok-01-text.png"


def talk(server: TestServer, *lines: str, flags: tuple[str, ...] = (), code: int = 0) -> Result:
    done = CliRunner().invoke(
        main, ["chat", "--url", server.url, *flags], input="".join(f"{line}\n" for line in lines)
    )
    assert done.exit_code == code, done.output
    return done


def prompts(server: TestServer) -> list[str]:
    decode = files().tokenizer.decode
    return [decode(request.prompt.token_ids, skip_special=False) for request in server.script.seen]


@pytest.fixture
def server() -> Iterator[TestServer]:
    with TestServer(Script("Aye.")) as server:
        yield server
        assert eventually(lambda: server.is_at_rest)


def test_answers_go_to_standard_output_and_the_rest_to_standard_error(server: TestServer) -> None:
    done = talk(server, "Hello", "", "And now?")
    assert done.stdout == "Aye.\nAye.\n"
    name, first, second = done.stderr.splitlines()
    assert name.startswith("tapetum-mini; /help")
    num_tokens = len(files().tokenizer.encode_plain("Aye.")) + 1
    for line in (first, second):
        assert line.startswith(f"{num_tokens} tokens in 0.")
        assert ", the first after 0." in line


def test_the_model_is_told_what_was_said_until_it_is_cleared(server: TestServer) -> None:
    talk(server, "/system Speak low", "Ahoy", "Who?", "/clear", "Gone", "/system", "/clear", "Bare")
    whole, after, cleared, bare = prompts(server)[0:4]
    assert "Speak low" in whole
    assert after.index("Speak low") < after.index("Ahoy") < after.index("Aye.") < after.index("Who?")
    assert "Gone" in cleared
    assert "Speak low" in cleared
    assert "Ahoy" not in cleared
    assert "Speak low" not in bare


def test_lines_that_end_in_a_backslash_go_on(server: TestServer) -> None:
    talk(server, "one\\", "two\\", "three", "four\\")
    first, second = prompts(server)
    assert "one\ntwo\nthree<" in first
    assert "four<" in second, "the end of the input ends a message too"


def test_pictures_go_with_the_next_words_and_stay_in_the_talk(server: TestServer, tmp_path: Path) -> None:
    spaced = tmp_path / "my picture.png"
    spaced.write_bytes(PICTURE.read_bytes())
    quoted, escaped = f"'{spaced}'", str(spaced).replace(" ", "\\ ")
    done = talk(
        server,
        f"/image {PICTURE}",
        f"/image {spaced}",
        f"/image {quoted} {escaped}",
        "Four?",
        f'{escaped} "{spaced}" {PICTURE} Seven, isn\'t it?',
        str(PICTURE),
        "Eight?",
        "Still eight?",
    )
    assert [len(request.prompt.spans) for request in server.script.seen] == [4, 7, 8, 8]
    assert done.stderr.count("my picture.png goes with your next words") == 5
    assert "Seven, isn't it?<" in prompts(server)[1]
    assert str(PICTURE) not in "".join(prompts(server))


def test_faults_are_told_and_the_talk_goes_on(server: TestServer, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n")
    done = talk(
        server,
        "/image nowhere.png",
        "/image",
        "/image 'x",
        "/zebra",
        f"/image {broken}",
        "Bad?",
        "x" * 9000,
        "Good?",
    )
    assert done.stdout == "Aye.\n"
    told = done.stderr.splitlines()[1:-1]
    assert "cannot read nowhere.png: No such file or directory" in told[0]
    assert "no path is given" in told[1]
    assert "No closing quotation" in told[2]
    assert "/zebra is no command; /help lists them" in told[3]
    assert len(told) == 7
    (asked,) = prompts(server)
    assert "Good?" in asked
    assert "Bad?" not in asked, "a question without an answer is forgotten"


def test_what_is_no_picture_or_video_is_told_at_once_and_goes_with_nothing(
    server: TestServer, tmp_path: Path
) -> None:
    words = tmp_path / "words.png"
    words.write_text("I am a text", encoding="utf-8")
    done = talk(server, f"/image {words}", f"/video {PICTURE}", "Hello")
    assert f"{words.name} is not a picture" in done.stderr
    assert f"{PICTURE.name} is not a video" in done.stderr
    assert "goes with" not in done.stderr
    assert [len(request.prompt.spans) for request in server.script.seen] == [0]


def test_commands_without_an_answer_confirm(server: TestServer) -> None:
    done = talk(server, "/system Speak low", "/system", "/clear", "/help")
    told = done.stderr.splitlines()[1:4]
    assert told == [
        "the model is told to follow that",
        "the model is told nothing any more",
        "what was said is forgotten",
    ]
    assert "/exit, /quit" in done.stderr


def test_a_talk_without_any_answer_has_failed(server: TestServer) -> None:
    server.script.fail_at = 0
    talk(server, "Hello", "Hello?", code=1)
    talk(server, "/zebra", "/clear")


def test_a_server_that_wants_a_key_is_told_in_words() -> None:
    with TestServer(Script("Aye."), ServerConfig(api_keys=("secret",))) as server:
        for words in ((), ("default",)):
            done = CliRunner().invoke(main, ["chat", "--url", server.url, *words], input="Hello\n")
            assert done.exit_code in (1, 2)
            assert "--api-key" in done.stderr
            assert "{" not in done.stderr
        assert talk(server, "Hello", flags=("--api-key", "secret")).stdout == "Aye.\n"


def test_an_answer_that_fails_on_its_way_is_told(server: TestServer) -> None:
    server.script.fail_at = 2
    done = talk(server, "Hello", code=1)
    assert "the script fails here" in done.stderr


def test_text_is_shown_as_it_is_but_for_what_drives_a_terminal(
    server: TestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script.answer = "a\u2028b\u0085c\x1b]0;title\x07d\te"
    assert talk(server, "Hello").stdout == "a\u2028bc]0;titled\te\n"
    show("deep\n", True)
    show("said\n", False)
    assert (*capsys.readouterr(),) == ("said\n", "deep\n")


def test_help_exit_and_limits(server: TestServer) -> None:
    done = talk(
        server, "/help", "Hello", "/exit", "Never", flags=("--max-tokens", "2", "--temperature", "0.5")
    )
    assert "/image PATH" in done.stderr
    assert done.stderr.rstrip().endswith(", cut at the limit")
    (request,) = server.script.seen
    assert (request.max_tokens, request.sampling.temperature) == (2, 0.5)


def test_the_model_of_a_server_may_be_named(server: TestServer) -> None:
    assert "default; /help" in talk(server, "Hello", flags=("default",)).stderr
    assert "nobody" in talk(server, "Hello", flags=("nobody",), code=1).stderr.splitlines()[1]


def test_a_server_that_is_not_there_is_told() -> None:
    done = CliRunner().invoke(main, ["chat", "--url", "http://127.0.0.1:9"], input="Hello\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("tapetum: http://127.0.0.1:9 does not answer")


def test_the_bundled_model_answers_in_process() -> None:
    sample = next(each for each in json.loads((SAMPLES_DIR / "samples.json").read_text()) if each["correct"])
    lines = f"/image {SAMPLES_DIR / sample['image']}\n{sample['question']}\n"
    done = CliRunner().invoke(main, ["chat", "--threads", "1"], input=lines)
    assert (done.exit_code, done.stdout) == (0, sample["expected"] + "\n")
    assert done.stderr.startswith("loading tapetum-mini …\n")


def test_an_interrupt_stops_the_answer_and_not_the_talk(server: TestServer) -> None:
    server.script.step_s = 0.05
    server.script.answer = "word " * 400
    process = subprocess.Popen(
        [sys.executable, "-m", "tapetum", "chat", "--url", server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("Count\n")
    process.stdin.flush()
    assert process.stdout.read(5) == "word "
    process.send_signal(signal.SIGINT)
    assert eventually(lambda: server.is_at_rest), "the request is cancelled"
    server.script.step_s = 0.0
    server.script.answer = "Done."
    said, told = process.communicate("Well?\n", timeout=30)
    assert process.returncode == 0
    assert said.endswith("\nDone.\n")
    assert ", stopped" in told
    assert "Traceback" not in told
    _, second = prompts(server)
    assert second.count("word ") >= 1, "what was said before the interrupt stays said"


def test_in_a_terminal_there_is_a_prompt_and_ctrl_d_ends(server: TestServer) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tapetum", "chat", "--url", server.url],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""

    def until(mark: bytes) -> None:
        nonlocal shown
        start = len(shown)
        while mark not in shown[start:]:
            shown += os.read(ours, 1)

    until(b"> ")
    os.write(ours, b"Hello\\\n")
    until(b"\n  ")
    os.write(ours, b"again\n")
    until(b"tokens in")
    until(b"> ")
    os.write(ours, b"\x04")
    assert process.wait(30) == 0
    os.close(ours)
    assert b"Aye." in shown
    assert b"\x1b[2m" in shown, "what the program itself says is dim"


@pytest.mark.parametrize(
    ("line", "names", "rest"),
    [
        ("PNG what?", ["PNG"], "what?"),
        ("'PNG' \"PNG\" it's", ["PNG", "PNG"], "it's"),
        ("what is PNG", [], "what is PNG"),
        ("'PNG", [], "'PNG"),
        ("README.md what", [], "README.md what"),
        ("nowhere.png what", [], "nowhere.png what"),
        ("", [], ""),
    ],
)
def test_files_that_were_dropped_are_told_from_words(line: str, names: list[str], rest: str) -> None:
    line, wanted = line.replace("PNG", str(PICTURE)), [("image", PICTURE)] * len(names)
    assert split_dropped(line) == (wanted, rest.replace("PNG", str(PICTURE)))


def test_clips_are_told_by_their_names(tmp_path: Path) -> None:
    clip = tmp_path / "a b.mp4"
    clip.touch()
    assert split_dropped(f"'{clip}' what?") == ([("video", clip)], "what?")
    assert paths_of(str(clip)) == [clip]
