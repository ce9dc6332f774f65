"""Small inputs that reproduce publicly reported faults of VLM inference servers: the specification of the runner.

Every case stands for one public report (R01..R66) about some server. They need only Pillow and numpy.

    CASES      list of Case(id, report, kind, fault, title, build, expect, reference)
    BY_ID      the same by id
    CONTROL    id of the plain request that tells whether a server still serves
    iter_bodies(step)   the request bodies of a "post_each" step, made lazily

What build() returns
    1. a chat request (a dict with "messages"), media inline as data URLs; or
    2. a scenario (a dict with "scenario"):
         config   settings that the server needs for it
         serve    routes of a throw-away media server that the runner starts:
                  {"route", "status", "headers", "body": bytes, "hang_s", "chunk_forever"}
         steps    a list, run in order; each step has "do":
            post       body=<request>, save=<name>; optional headers, abort_after_chunks, abort_after_s
            post_raw   body=<bytes>, path, headers, save
            post_each  gen=<name in GENERATORS>, args, concurrency, save
                       (bodies come from iter_bodies(step); the replies are a list)
            parallel   steps=[...], optional "stagger_ms"
            get, poll  path, save; poll: every_ms, for_s (beside the next step when "background" is true)
            derive_stop  from=<name>, at=[start, end]: text[start:end] of that reply becomes the stop string {STOP}
                       of the steps that follow
            signal     target "server" | "worker", sig "TERM" | "KILL", after_s
            start      args={...}: start a fresh server with those settings
            reset_caches, sleep (s), measure (what="rss", save)
       The runner fills words in braces in urls: {MEDIA} = origin of the media server (allowed by config),
       {CANARY} = origin of a second listener that nobody may contact, {TMPFILE} = path of a real picture that the
       server could read.

What expect holds (all keys optional; every one given must hold)
    status                    a status or a list of them
    any_of                    list of expect dicts of which at least one must hold
    error_contains_any        lower-case words, at least one in the error message
    error_is_json             body is {"error": {"message": ...}} (expected of every status from 400 on)
    same_prompt_tokens_as     usage.prompt_tokens equals that of another case
    same_output_as            text at temperature 0 and first-token logits equal too
    similar_output_as         first-token top-5 the same set, logits within 0.1
    different_output_from     first-token logits differ from those of another case
    different_prompt_tokens_from
    prompt_tokens_greater_than, prompt_tokens_less_than   a case id or a number
    prompt_tokens_within      [case id, n]: the difference is at most n
    image_spans               number of pictures in the prompt that the model gets
    choices                   number of choices
    json_schema_valid         the text parses and fits the schema of the request
    max_seconds               whole time
    rss_growth_mb_max         growth of the server's resident memory
    reply_and_log_without_base64   no run of more than 200 base64 characters in reply or log
    server_alive_after        GET /health is 200 and CONTROL still answers as before
    same_status_as            status equals that of another case
    checks                    of scenarios: a list of dicts with one relation each (see RELATIONS) on saved names; a
                              name saved several times is a list; paths are like "a.status", "a.text",
                              "a.usage.prompt_tokens"
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.faults import (
    api,
    caching,
    image_decode,
    image_geometry,
    messages,
    requests,
    scheduling,
    server,
    transport,
    video,
)
from tests.conformance.faults.form import Case

EXPECT_KEYS = {
    "status",
    "any_of",
    "error_contains_any",
    "error_is_json",
    "same_prompt_tokens_as",
    "same_output_as",
    "similar_output_as",
    "different_output_from",
    "different_prompt_tokens_from",
    "prompt_tokens_greater_than",
    "prompt_tokens_less_than",
    "prompt_tokens_within",
    "image_spans",
    "choices",
    "json_schema_valid",
    "max_seconds",
    "rss_growth_mb_max",
    "reply_and_log_without_base64",
    "server_alive_after",
    "same_status_as",
    "checks",
}

RELATIONS = {
    # statuses and times
    "every_status": "all replies of that name have a status out of 'in'",
    "status_of": "the reply has a status out of 'in'",
    "no_status_of": "[name, status] never occurs",
    "one_status_in": "[name, statuses]: exactly one reply has one of them",
    "same_status_of_every": "all replies of that name have one status",
    "status_or_refused": "[name, statuses]: such a status, or the connection is refused",
    "status_within_s": "[polled name, status, s]: seen at most s after the signal",
    "max_seconds_of": "each reply of that name within 's'",
    "max_seconds_each": "each reply within so many seconds",
    "p95_ms_of": "95th percentile of the polls of that name within 'ms'",
    "max_gap_ms_of": "largest gap between chunks at most times_of_alone x that of 'alone', or or_ms",
    # texts
    "equal": "both paths have one value",
    "differ": "the two paths have different values",
    "greater": "first > second",
    "every_equal": "the list has one value",
    "not_all_equal": "the list has at least two values",
    "pairwise_equal": "two lists of paths agree element by element",
    "pairwise_equal_text": "texts of two lists agree element by element",
    "pairwise_equal_logits": "first-token logits of two lists agree element by element (tolerance 1e-3)",
    "repeats_equal": "equal bodies in the list got equal texts",
    "sample_equal_to_cold": "[name, n]: n drawn replies equal those of a server with empty caches",
    "same_output_as_case": "[name, case id]: text and prompt tokens as that case",
    "text_never_contains": "[name, word]",
    "log_never_contains": "words that must not be in the server's log",
    "same_text_of_every": "all have one text (nothing is told apart)",
    "finish_reason_of": "is 'is'",
    "every_json_schema_valid": "each text parses and fits its own request's schema",
    "no_traceback_in": "no class names, file names or stack traces in the reply",
    "every_error_is_json": "each error body is {'error': {'message': ...}}",
    "error_names_remote_status": "the message tells the remote status or what was wrong with the body",
    # streams
    "stream_text_equals_prefix_of": "[name, full, stop]: text = full text up to the first stop",
    "no_suffix_is_prefix_of_stop": "the text does not end with a begun stop string",
    "no_char_in_any_chunk": "[name, char]",
    "every_chunk_valid_utf8": "each chunk decodes by itself",
    "last_chunk": "the last data chunk has so many choices and the key 'has'",
    "usage_chunks_without_option": "[name, n]: number of chunks that carry usage",
    # media server
    "canary_hits": "connections that the second listener saw",
    "served_query_verbatim": "the query the media server got",
    # hooks of the engine or its metrics
    "role_turns_seen_by_model": "number of user/system turns in the token sequence of the prompt",
    "prompt_order": "order of the parts in the token sequence",
    "cached_tokens_at_least_image_of": "[name, other]: usage tells cached tokens >= tokens of the picture of other",
    "distinct_image_keys": "[name, n]: n different cache keys",
    "gauge": "[name, value]",
    "gauge_within_s": "[name, value, s]: reached at most s after the last step",
    "counter_delta": "[name, value] between 'before' and 'after'",
    "counter_delta_equals_sum_of_usage": "[counter, replies]",
    "no_negative_metric": "",
    # process
    "rss_growth_mb_max": "resident memory, whole scenario",
    "rss_growth_second_half_percent_max": "[measures, percent]: last measure against the middle one",
    "exit_within_s": "",
    "exit_code": "",
    "no_orphan_process": "",
    "start_outcome": "one of these",
    "never": "none of these",
}

CASES: list[Case] = [
    *requests.CASES,
    *image_decode.CASES,
    *image_geometry.CASES,
    *transport.CASES,
    *messages.CASES,
    *video.CASES,
    *api.CASES,
    *caching.CASES,
    *scheduling.CASES,
    *server.CASES,
]
BY_ID = {case.id: case for case in CASES}
CONTROL = requests.CONTROL
GENERATORS = caching.GENERATORS


def iter_bodies(step: dict) -> Iterator[dict]:
    return GENERATORS[step["gen"]](**step.get("args", {}))
