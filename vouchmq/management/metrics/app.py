"""The Prometheus endpoint as an ASGI application, for a port of its own and without a login.

    scrape ─▶ listings of the broker, sliced there ─▶ families ─▶ text, in a thread

Each scrape asks the broker anew. Spec: METRIC-01, METRIC-09
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from vouchmq.management.broker import Broker, BrokerUnavailable, CommandRefused
from vouchmq.management.metrics.measures import (
    histogram_families,
    login_families,
    store_families,
)
from vouchmq.management.metrics.node import node_families
from vouchmq.management.metrics.objects import (
    DETAILED_PREFIX,
    FAMILIES,
    PREFIX,
    QUEUES,
    SIZED,
    SIZES,
    object_families,
    wanted_kinds,
    with_sizes,
)
from vouchmq.management.metrics.shared_log import asked_log, log_families
from vouchmq.management.metrics.totals import total_families

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from prometheus_client.core import Metric
    from starlette.requests import Request

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BAD_REQUEST: Final = 400
UNAVAILABLE: Final = 503


def metrics_app(broker: Broker) -> Starlette:
    """The application for the port of Prometheus."""

    async def aggregated(request: Request) -> Response:
        del request
        return await _scraped(_aggregated(broker))

    async def per_object(request: Request) -> Response:
        del request
        return await _scraped(_per_object(broker))

    async def detailed(request: Request) -> Response:
        families = request.query_params.getlist("family")
        unknown = sorted({*families} - {*FAMILIES})
        if unknown or not families:
            text = f"no family {unknown[0]!r}" if unknown else "name a family"
            known = ", ".join(FAMILIES)
            return PlainTextResponse(f"{text}: ?family= takes {known}\n", BAD_REQUEST)
        vhosts = request.query_params.getlist("vhost")
        return await _scraped(_objects(broker, families, DETAILED_PREFIX, vhosts))

    return Starlette(
        routes=[
            Route("/metrics", aggregated),
            Route("/metrics/per-object", per_object),
            Route("/metrics/detailed", detailed),
        ]
    )


async def _aggregated(broker: Broker) -> list[Metric]:
    """What is in /metrics."""
    [overview] = await broker.rows("overview-details")
    [store] = await broker.rows("store-details")
    histograms = await broker.rows("histograms")
    logins = await broker.rows("login-attempts")
    alarms = await broker.rows("alarms")
    status = await broker.ask("status")
    log = await asked_log(broker, status)
    return [
        *node_families(overview, alarms, store, status),
        *(log_families(log) if log is not None else ()),
        *total_families(overview),
        *store_families(store),
        *login_families(logins),
        *histogram_families(histograms),
    ]


async def _per_object(broker: Broker) -> list[Metric]:
    """The same, with the metrics of objects one by one where they would be added up."""
    single = await _objects(broker, FAMILIES, PREFIX, ())
    names = {each.name for each in single}
    return [*(each for each in await _aggregated(broker) if each.name not in names), *single]


async def _objects(
    broker: Broker, families: Sequence[str], prefix: str, vhosts: Sequence[str]
) -> list[Metric]:
    """The metrics of objects, perhaps only of those in some virtual hosts."""
    found: list[Metric] = []
    for kind in wanted_kinds(families):
        rows = await broker.rows(kind.listing)
        if kind is QUEUES and SIZED in families:
            rows = with_sizes(rows, await broker.rows(SIZES))
        if vhosts:
            rows = [row for row in rows if row["vhost"] in vhosts]
        found += object_families(kind, rows, families, prefix)
    return found


async def _scraped(asked: Awaitable[Iterable[Metric]]) -> Response:
    try:
        families = list(await asked)
    except (BrokerUnavailable, CommandRefused) as error:
        return PlainTextResponse(f"{error}\n", UNAVAILABLE)
    # Text of ten thousand queues takes a second.
    text = await asyncio.to_thread(_text_of, families)
    return Response(text, media_type=CONTENT_TYPE)


def _text_of(families: Sequence[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    """Families that are known already."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        """Nothing: they are of one scrape."""
        return []

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        return self._families
