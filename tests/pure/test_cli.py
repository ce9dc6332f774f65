"""The command line without a model: start-up time, flags and what they set, errors and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tapetum.assets import MODEL_DIR, SAMPLES_DIR
from tapetum.core.checks import RANGES
from tapetum.core.config import EngineConfig, ServerConfig
from tapetum.core.errors import CheckpointError, EngineError, InvalidParameter, TapetumError

PICTURE = str(SAMPLES_DIR / "ok-01-text.png")


def best_seconds(*command: str) -> float:
    """The shortest of several runs: other work on the machine must not decide."""
    best = float("inf")
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=60)
        best = min(best, time.perf_counter() - started)
        if best < 0.25:
            break
    return best


def test_importing_the_package_takes_no_time() -> None:
    bare = best_seconds("-c", "pass")
    assert best_seconds("-c", "import tapetum") - bare < 0.3


def test_help_is_quick_and_needs_no_torch() -> None:
    ask = "import sys; from tapetum.cli import main; main(['--help'], standalone_mode=False)"
    probe = f"{ask}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    *text, last = done.stdout.splitlines()
    assert text[0].startswith("Usage:")
    assert last == "False False"
    assert best_seconds("-c", ask) < 0.5


def cli(*words: str, env: dict[str, str] | None = None) -> Result:
    from tapetum.cli import main

    return CliRunner().invoke(main, words, env=env)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineConfig, ServerConfig]]:
    """What `serve` would start."""
    from tapetum.engine import child
    from tapetum.server import run

    calls: list[tuple[EngineConfig, ServerConfig]] = []
    monkeypatch.setattr(child, "try_start_child", lambda: None)
    monkeypatch.setattr(run, "serve", lambda engine, server, process: calls.append((engine, server)))
    return calls


Served = list[tuple[EngineConfig, ServerConfig]]


def test_without_flags_everything_is_at_its_default(served: Served) -> None:
    assert cli("serve").exit_code == 0
    assert served == [(EngineConfig(), ServerConfig())]


FLAGS: dict[str, tuple[str, str, str, object]] = {
    "--revision": ("main", "model", "revision", "main"),
    "--device": ("cuda:1", "device", "device", "cuda:1"),
    "--dtype": ("bfloat16", "model", "dtype", "bfloat16"),
    "--pack-cache": ("packs", "model", "pack_cache", "packs"),
    "--max-model-len": ("1000", "model", "max_model_len", 1000),
    "--max-num-seqs": ("3", "schedule", "max_num_seqs", 3),
    "--max-num-batched-tokens": ("77", "schedule", "max_num_batched_tokens", 77),
    "--encoder-budget-tokens": ("88", "schedule", "encoder_budget_tokens", 88),
    "--itl-target-ms": ("12.5", "schedule", "itl_target_ms", 12.5),
    "--quality-ladder": ("2.5", "schedule", "quality_ladder_s", 2.5),
    "--max-queue-len": ("5", "schedule", "max_queue_len", 5),
    "--schedule": ("throughput", "schedule", "schedule", "throughput"),
    "--speculate": ("off", "schedule", "speculate", "off"),
    "--kv-cache-memory": ("1.5", "cache", "kv_cache_bytes", 3 * 2**29),
    "--swap-space": ("0", "cache", "swap_bytes", 0),
    "--feature-tier": ("host:?max=1GiB", "tiers", "feature_tiers", ("host:?max=1GiB",)),
    "--kv-tier": ("disk:/var/cache/kv", "tiers", "kv_tiers", ("disk:/var/cache/kv",)),
    "--visual-kv-share": ("0.5", "cache", "visual_kv_share", 0.5),
    "--feature-cache-gib": ("2", "cache", "feature_cache_bytes", 2**31),
    "--window-cache-gib": ("0", "cache", "window_cache_bytes", 0),
    "--block-size": ("32", "cache", "block_size", 32),
    "--gpu-memory-utilization": ("0.5", "device", "gpu_memory_utilization", 0.5),
    "--limit-mm-per-prompt": ("2", "media", "limit_per_prompt", 2),
    "--allowed-local-media-path": (str(SAMPLES_DIR), "media", "allowed_local_path", str(SAMPLES_DIR)),
    "--media-max-mb": ("3", "media", "max_bytes", 3 * 2**20),
    "--media-timeout-s": ("4", "media", "timeout_s", 4.0),
    "--allowed-media-domains": ("a.example", "media", "allowed_domains", ("a.example",)),
    "--mm-processor": ("fast", "media", "mm_processor", "fast"),
    "--mm-processor-kwargs": ('{"max_pixels": 5000}', "media", "mm_processor_kwargs", {"max_pixels": 5000}),
    "--media-io-kwargs": ('{"video": {"fps": 1}}', "media", "media_io_kwargs", {"video": {"fps": 1}}),
    "--seed": ("9", "device", "seed", 9),
    "--threads": ("2", "device", "threads", 2),
}
SERVER_FLAGS: dict[str, tuple[str, str, object]] = {
    "--host": ("::1", "host", "::1"),
    "--port": ("0", "port", 0),
    "--api-key": ("a", "api_keys", ("a",)),
    "--api-key-file": (PICTURE, "api_key_file", PICTURE),
    "--allowed-origins": ("https://a.example", "allowed_origins", ("https://a.example",)),
    "--ssl-certfile": (PICTURE, "ssl_certfile", PICTURE),
    "--max-queue-seconds": ("2.5", "max_queue_s", 2.5),
    "--shutdown-grace-s": ("0", "shutdown_grace_s", 0.0),
    "--engine-restarts": ("3", "engine_restarts", 3),
    "--metrics-prefix": ("vllm", "metrics_prefix", "vllm"),
    "--log-level": ("debug", "log_level", "debug"),
}


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("is_variable", [False, True])
def test_a_flag_or_its_variable_sets_its_field_and_no_other(
    served: Served, flag: str, is_variable: bool
) -> None:
    text, record, field, value = FLAGS[flag]
    variable = "TAPETUM_" + flag[2:].replace("-", "_").upper()
    result = cli("serve", env={variable: text}) if is_variable else cli("serve", flag, text)
    assert result.exit_code == 0, result.output
    default = EngineConfig()
    part = getattr(default, record)
    assert getattr(part, field) != value, "the test must set something new"
    ((engine, server),) = served
    assert engine == replace(default, **{record: replace(part, **{field: value})})
    assert server == ServerConfig(max_body_bytes=server.max_body_bytes)


@pytest.mark.parametrize("flag", SERVER_FLAGS)
@pytest.mark.parametrize("is_variable", [False, True])
def test_a_flag_of_the_server_sets_its_field_and_no_other(
    served: Served, flag: str, is_variable: bool
) -> None:
    text, field, value = SERVER_FLAGS[flag]
    variable = "TAPETUM_" + flag[2:].replace("-", "_").upper()
    result = cli("serve", env={variable: text}) if is_variable else cli("serve", flag, text)
    assert result.exit_code == 0, result.output
    assert getattr(ServerConfig(), field) != value, "the test must set something new"
    assert served == [(EngineConfig(), ServerConfig(**{field: value}))]


def test_several_places_of_media_are_allowed_by_several_flags_or_a_list(served: Served) -> None:
    places = ("http://127.0.0.1:8123", "a.example", "*")
    flag = "--allowed-media-domains"
    assert cli("serve", *(word for place in places for word in (flag, place))).exit_code == 0
    assert cli("serve", flag, json.dumps(places)).exit_code == 0
    assert cli("serve", env={"TAPETUM_ALLOWED_MEDIA_DOMAINS": " ".join(places)}).exit_code == 0
    assert [engine.media.allowed_domains for engine, _ in served] == [places] * 3


@pytest.mark.parametrize("flag", ["--mm-processor-kwargs", "--media-io-kwargs"])
@pytest.mark.parametrize("text", ["5", "[]", "{", "x"])
def test_options_of_media_are_a_json_object(flag: str, text: str) -> None:
    result = cli("serve", flag, text)
    assert result.exit_code == 2
    assert "is no JSON object; write one such as {" in " ".join(result.output.split())


def test_a_body_may_hold_several_of_the_largest_pictures(served: Served) -> None:
    for size in ("1", "64", "500"):
        assert cli("serve", "--media-max-mb", size).exit_code == 0
    assert [server.max_body_bytes // 2**20 for _, server in served] == [16, 256, 2000]


def test_offline_is_a_switch(served: Served) -> None:
    for words, is_offline in (((), False), (("--offline",), True)):
        assert cli("serve", *words).exit_code == 0
        assert served[-1][0].model.is_offline is is_offline


def test_every_flag_is_tested() -> None:
    from tapetum.cli import main

    others = {
        "--config",
        "--enable-debug-endpoints",
        "--enable-prefix-caching",
        "--help",
        "--model",
        "--offline",
        "--served-model-name",
        "--ssl-keyfile",
    }
    assert isinstance(main, click.Group)
    names = {
        parameter.opts[0]
        for parameter in main.commands["serve"].params
        if isinstance(parameter, click.Option)
    }
    assert names - others == set(FLAGS) | set(SERVER_FLAGS)


def test_flags_of_the_server_and_the_model(served: Served) -> None:
    words = ["--api-key", "a", "--api-key", "b", "--no-enable-prefix-caching", "--enable-debug-endpoints"]
    words += ["--ssl-certfile", PICTURE, "--ssl-keyfile", PICTURE]
    assert (
        cli("serve", str(MODEL_DIR), *words, "--served-model-name", "x", "--served-model-name", "y").exit_code
        == 0
    )
    ((engine, server),) = served
    assert server == ServerConfig(
        api_keys=("a", "b"), has_debug_endpoints=True, ssl_certfile=PICTURE, ssl_keyfile=PICTURE
    )
    assert engine.model.model == str(MODEL_DIR)
    assert engine.model.served_model_names == ("x", "y")
    assert engine.cache.has_prefix_caching is False


def test_defaults_in_the_help_are_those_of_the_records() -> None:
    text = " ".join(cli("serve", "--help").output.split())
    engine, server = EngineConfig(), ServerConfig()
    assert f"Requests in one step. [default: {engine.schedule.max_num_seqs}]" in text
    assert f"Largest picture file. [default: {engine.media.max_bytes // 2**20}]" in text
    assert f"[default: {server.host}]" in text
    assert f"[default: {server.port}" in text


def test_media_are_limited_together_or_by_kind(served: Served) -> None:
    assert cli("serve", "--limit-mm-per-prompt", '{"image": 5, "video": 1}').exit_code == 0
    assert served[0][0].media.limit_per_prompt == {"image": 5, "video": 1}


@pytest.mark.parametrize(
    ("words", "env", "origins"),
    [
        (["--allowed-origins", '["https://a", "http://b"]'], {}, ("https://a", "http://b")),
        (["--allowed-origins", "https://a", "--allowed-origins", "*"], {}, ("https://a", "*")),
        ([], {"TAPETUM_ALLOWED_ORIGINS": "https://a http://b"}, ("https://a", "http://b")),
        ([], {"TAPETUM_ALLOWED_ORIGINS": '["https://a", "http://b"]'}, ("https://a", "http://b")),
    ],
)
def test_origins_in_their_several_forms(
    served: Served, words: list[str], env: dict[str, str], origins: tuple[str, ...]
) -> None:
    assert cli("serve", *words, env=env).exit_code == 0
    assert served[0][1].allowed_origins == origins


def test_several_keys_in_one_variable(served: Served) -> None:
    assert cli("serve", env={"TAPETUM_API_KEY": "one two"}).exit_code == 0
    assert served[0][1].api_keys == ("one", "two")


CONFIG_FILE = f"""
# what a service is started with
model: {MODEL_DIR}
port: 9000
max-num-seqs: 5
max_model_len: 1000  # underscores do as well
revision: null
served-model-name: [big, small]
api-key: 123
allowed-origins: ["https://a", "https://b"]
limit-mm-per-prompt: {{image: 5, video: 1}}
enable-prefix-caching: false
enable-debug-endpoints: true
itl-target-ms: 12.5
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "tapetum.yaml"
    path.write_text(CONFIG_FILE, encoding="utf-8")
    return path


def test_a_file_sets_what_flags_set(served: Served, config_file: Path) -> None:
    result = cli("serve", "--config", str(config_file))
    assert result.exit_code == 0, result.output
    by_flags = [*("--model", str(MODEL_DIR)), *("--port", "9000"), *("--max-num-seqs", "5")]
    by_flags += [*("--max-model-len", "1000"), *("--served-model-name", "big"), *("--api-key", "123")]
    by_flags += [*("--served-model-name", "small"), "--no-enable-prefix-caching", "--enable-debug-endpoints"]
    by_flags += ["--allowed-origins", '["https://a", "https://b"]', "--itl-target-ms", "12.5"]
    by_flags += ["--limit-mm-per-prompt", '{"image": 5, "video": 1}']
    assert cli("serve", *by_flags).exit_code == 0
    assert served[0] == served[1]
    assert served[0][1].port == 9000
    assert served[0][0].media.limit_per_prompt == {"image": 5, "video": 1}


def test_a_flag_beats_its_variable_and_that_the_file(served: Served, config_file: Path) -> None:
    at_file = {"TAPETUM_CONFIG": str(config_file)}
    for words, env in (
        ([], at_file),
        ([], {**at_file, "TAPETUM_PORT": "9001", "TAPETUM_MODEL": "x/y"}),
        (["--port", "9002", "a/b"], {**at_file, "TAPETUM_PORT": "9001", "TAPETUM_MODEL": "x/y"}),
    ):
        assert cli("serve", *words, env=env).exit_code == 0
    assert [server.port for _, server in served] == [9000, 9001, 9002]
    assert [engine.model.model for engine, _ in served] == [str(MODEL_DIR), "x/y", "a/b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seq: 5", ["'max-num-seq' is no flag of `tapetum serve`", "did you mean max-num-seqs?"]),
        ("zebra: 5", ["'zebra' is no flag", "known are"]),
        ("config: other.yaml", ["'config' is no flag"]),
        ("port: many", ["--port", "'many'"]),
        ("port: 80.5", ["--port", "80.5"]),
        ("port: 99999", ["--port is 99999, allowed are 0 to 65535"]),
        ("enable-debug-endpoints: 1", ["enable-debug-endpoints is 1, must be true or false"]),
        ("enable-prefix-caching: off course", ["must be true or false"]),
        ("allowed-origins: [5, [x, 6]]", ["is no list of names"]),
        ("- port", ["holds ['port'], must be keys and values"]),
        ("{", ["cannot be read as YAML"]),
        ("port: !!python/object/apply:os.system [ls]", ["cannot be read as YAML"]),
    ],
)
def test_a_bad_file_is_told(config_file: Path, text: str, words: list[str]) -> None:
    config_file.write_text(text, encoding="utf-8")
    result = cli("serve", "--config", str(config_file))
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert all(word in message for word in words), message
    assert "Traceback" not in result.output


def test_an_empty_file_says_nothing(served: Served, config_file: Path) -> None:
    config_file.write_text("# nothing\n", encoding="utf-8")
    assert cli("serve", "--config", str(config_file)).exit_code == 0
    assert served == [(EngineConfig(), ServerConfig())]


def test_a_range_names_the_flag_of_its_field() -> None:
    fields_of_flags = {flag: name for flag, (_, _, name, _) in FLAGS.items()}
    fields_of_flags |= {flag: name for flag, (_, name, _) in SERVER_FLAGS.items()}
    labels = {label: name for name, (label, *_) in RANGES.items() if label.startswith("--")}
    assert labels.items() <= fields_of_flags.items()
    assert len(labels) > 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--port", "99999"], "99999"),
        (["serve", "--dtype", "int3"], "int3"),
        (["serve", "--max-num-seqs", "0"], "--max-num-seqs is 0, allowed are 1 to 1048576"),
        (["serve", "--max-model-len", "-5"], "--max-model-len is -5, allowed are 2 to"),
        (["serve", "--itl-target-ms", "inf"], "--itl-target-ms is inf"),
        (["serve", "--media-timeout-s", "nan"], "--media-timeout-s is nan"),
        (["run", PICTURE, "What?", "--seed", "9" * 23], "--seed is 99999999999999999999999, allowed"),
        (["serve", "--limit-mm-per-prompt", "few"], "'few' is neither a number nor JSON"),
        (["serve", "--limit-mm-per-prompt", '{"cats": 2}'], "--limit-mm-per-prompt is {'cats': 2}, must be"),
        (["serve", "--kv-cache-memory", "lots"], "'lots' is not a size in GiB"),
        (["serve", "--kv-cache-memory", "-1"], "'-1' is not a size in GiB"),
        (["serve", "--kv-cache-memory", "nan"], "'nan' is not a size in GiB"),
        (["serve", "--block-size", "12"], "--block-size is 12, must be a power of two"),
        (["serve", "--api-key", ""], "--api-key is empty"),
        (["serve", "--ssl-keyfile", PICTURE], "--ssl-keyfile is set without --ssl-certfile"),
        (["serve", "--api-key-file", "missing"], "missing"),
        (["serve", "--shutdown-grace-s", "-1"], "--shutdown-grace-s is -1.0, allowed are 0 to"),
        (["serve", "--metrics-prefix", "a:b"], "--metrics-prefix is 'a:b', must be letters"),
        (["serve", "--allowed-origins", '["a", 5]'], "is no list of names"),
        (["serve", "--log-level", "loud"], "loud"),
        (["serve", "--config", "missing.yaml"], "missing.yaml"),
        (["serve", "--zebra"], "zebra"),
        (["serve", "a", "--model", "b"], "two models are named, a and b"),
        (["run"], "Missing argument"),
        (["run", "missing.png", "What?"], "no such file: missing.png"),
        (["run", str(SAMPLES_DIR), "What?"], "samples is a directory without a config.json"),
        (["run", PICTURE], "is a file; put the question behind it"),
        (["run", PICTURE, "What?", "--max-tokens", "0"], "0"),
        (["run", "--model", "no/such/model/here", PICTURE, "What?"], "no/such/model/here"),
        (["evaluate", "--tasks", "zebras"], "zebras"),
        (["evaluate", "--condition", "fog"], "fog, known are clean, jpeg"),
    ],
)
def test_what_the_user_can_correct_is_one_message_and_exit_code_2(words: list[str], message: str) -> None:
    result = cli(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [(InvalidParameter("n is 0"), 2), (CheckpointError("no config.json"), 2), (EngineError("lost"), 1)],
)
def test_a_typed_error_is_one_line(monkeypatch: pytest.MonkeyPatch, error: TapetumError, code: int) -> None:
    from tapetum.engine import child
    from tapetum.server import run

    def fail(engine: EngineConfig, server: ServerConfig, process: None) -> None:
        raise error

    monkeypatch.setattr(child, "try_start_child", lambda: None)
    monkeypatch.setattr(run, "serve", fail)
    result = cli("serve")
    assert (result.exit_code, result.stderr) == (code, f"tapetum: {error.message}\n")


def test_a_question_longer_than_a_file_name_is_a_question() -> None:
    result = cli("run", "missing.png", "why " * 2000)
    assert "no such file: missing.png" in result.stderr


def test_evaluate_passes_its_flags_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tapetum import evaluate

    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(evaluate, "run", lambda *values: calls.append(values))
    assert cli("evaluate").exit_code == 0
    out = str(tmp_path / "figures.json")
    assert (
        cli(
            *("evaluate", "here", "--n", "7", "--tasks", "text, chart", "--dtype", "float32", "--json", out),
            *("--condition", "clean,fonts", "--fonts", str(tmp_path)),
        ).exit_code
        == 0
    )
    assert calls == [
        (None, 100, evaluate.ALL_TASKS, "auto", None, ("clean",), None),
        ("here", 7, ("text", "chart"), "float32", out, ("clean", "fonts"), str(tmp_path)),
    ]


def test_no_two_records_share_a_field_name() -> None:
    parts = [getattr(EngineConfig(), item.name) for item in fields(EngineConfig)]
    names = [item.name for part in parts for item in fields(part)]
    assert len(names) == len(set(names)), "flags name fields without their record"


def test_every_flag_of_every_command_has_its_variable() -> None:
    from tapetum.cli import main

    for command in main.commands.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                flag = parameter.opts[0]
                assert parameter.envvar == "TAPETUM_" + flag.strip("-").replace("-", "_").upper(), flag


def test_help_shows_the_flags_of_a_command_before_those_of_an_engine() -> None:
    own = {"run": "--json", "chat": "--url", "run-batch": "--concurrency", "serve": "--port"}
    for name, flag in own.items():
        text = cli(name, "--help").output
        options, heading, engine = text.partition("\nEngine options:\n")
        assert heading, name
        assert f"{flag} " in options
        assert "--model " in options
        assert "--schedule" not in options
        assert "--schedule" in engine
        assert flag + " " not in engine
        assert "--help" in options
        assert "MODEL]" not in options.partition("Options:")[2]


def test_an_interrupt_while_a_model_loads_is_one_line_and_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    from tapetum.engine import service

    async def interrupted(engine: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(service.AsyncEngine, "start", interrupted)
    result = cli("run", PICTURE, "What?")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "tapetum: stopped"
