"""The engine's numbers in the text format of Prometheus.

Owns the names and the label of the model. Counts nothing itself: every scrape reads the engine's own state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family

from tapetum.engine.meters import Distribution, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(metrics: Iterable[Metric], *, prefix: str, model_name: str) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Snapshot(metrics, prefix, model_name))
    return generate_latest(registry)


class _Snapshot:
    def __init__(self, metrics: Iterable[Metric], prefix: str, model_name: str) -> None:
        self._metrics = metrics
        self._prefix = prefix
        self._model_name = model_name

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}  # a name is told once, with all its labels
        for metric in self._metrics:
            family = families.get(metric.name)
            if family is None:
                family = Family(f"{self._prefix}:{metric.name}", metric.text, metric.kind)
                families[metric.name] = family
            for label, value in metric.values.items():
                labels = {"model_name": self._model_name, **metric.fixed}
                if metric.label is not None:
                    labels[metric.label] = label
                _add(family, labels, value)
        yield from families.values()


def _add(family: Family, labels: dict[str, str], value: float | Distribution) -> None:
    """The samples of one value, named as the text format wants them."""
    if isinstance(value, Distribution):
        for bound, count in _cumulative(value):
            family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{family.name}_count", labels, value.count)
        family.add_sample(f"{family.name}_sum", labels, value.total)
    else:
        family.add_sample(family.name + "_total" * (family.type == "counter"), labels, value)


def _cumulative(distribution: Distribution) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*distribution.bounds, float("inf")), distribution.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    return buckets
