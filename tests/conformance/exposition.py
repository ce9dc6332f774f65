"""The numbers of a server in the text format of Prometheus, by the words that checks use for them."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.observation import Unmet

# what checks say: (name without its prefix, labels of which one must fit)
_GAUGES: dict[str, str] = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv_usage": "kv_cache_usage_perc",
}
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "finished": ("request_success", ("stop", "length", "tool_calls", "content_filter")),
    "aborted": ("request_success", ("abort",)),
    "failed": ("request_success", ("error",)),
    "rejected": ("rejections", ()),
    "prompt_tokens": ("prompt_tokens", ()),
    "generation_tokens": ("generation_tokens", ()),
    "preemptions": ("num_preemptions", ()),
    "prefix_queries": ("prefix_cache_queries", ()),
    "prefix_hits": ("prefix_cache_hits", ()),
    "media_queries": ("mm_cache_queries", ()),
    "media_hits": ("mm_cache_hits", ()),
}
USAGE_OF = {
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "completion_tokens",
    "completion_tokens": "completion_tokens",
}


class Numbers:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._samples = [
            (sample.name.rpartition(":")[2], sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def gauge(self, word: str) -> float:
        """The value of a gauge, its labels together."""
        return self._sum(_GAUGES.get(word, word), lambda labels: True)

    def counter(self, word: str) -> float:
        """The total of a counter; one that has counted nothing yet may have no labels, and is 0."""
        word = {"completion_tokens": "generation_tokens"}.get(word, word)
        name, reasons = _COUNTERS.get(word, (word.removesuffix("_total"), ()))
        if reasons:
            return sum(
                value
                for found, labels, value in self._samples
                if found == f"{name}_total" and labels.get("finished_reason") in reasons
            )
        is_bare = word in _COUNTERS and word in ("rejected", "media_hits")
        return self._sum(f"{name}_total", lambda labels: True, has_none=is_bare)

    def tier_bytes(self, kind: str) -> float:
        return self._sum("tier_bytes", lambda labels: labels.get("kind") == kind)

    def negatives(self) -> list[str]:
        return [f"{name} is {value:g}" for name, _, value in self._samples if value < 0]

    def _sum(
        self, name: str, is_wanted: Callable[[dict[str, str]], bool], *, has_none: bool = False
    ) -> float:
        values = [value for found, labels, value in self._samples if found == name and is_wanted(labels)]
        if not values and not has_none:
            raise Unmet(f"the server has no metric {name}")
        return sum(values)
