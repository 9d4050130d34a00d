"""The Celery applications of `celery_apps` as a test uses them: here, and in workers.

Knows how to begin and how to tidy up; what the tasks must do is for the tests to say.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import kombu.pools
import pika

from tests.integration.frameworks import celery_apps
from tests.integration.frameworks.worker_process import WorkerProcess

LIMIT_S: Final = 60


class Celery:
    """The applications of `celery_apps`, at one broker, under names of their own."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.prefix = f"frameworks.{uuid.uuid4().hex[:8]}"
        self._directory = directory
        self.environment = {"FRAMEWORK_TEST_URL": url, "FRAMEWORK_TEST_PREFIX": self.prefix}
        self._apps = celery_apps.applications(url, self.prefix)

    def app(self, name: str) -> Any:
        """One application, in this process."""
        return self._apps[name]

    def worker(self, name: str, *flags: str) -> WorkerProcess:
        """Start a worker of the application, with the default pool."""
        command = [sys.executable, "-m", "celery", "-A", f"{celery_apps.__name__}:{name}", "worker"]
        return WorkerProcess(
            [*command, "--concurrency", "1", "--loglevel", "info", *flags],
            self._directory / f"{name}.{uuid.uuid4().hex[:8]}.log",
            environment=self.environment,
            ready=" ready.",
        )

    def close(self) -> None:
        """Close connections and delete what was declared."""
        for app in self._apps.values():
            with suppress(AttributeError):  # it never waited for a result
                app.backend.result_consumer.stop()
            app.close()
        kombu.pools.reset()
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            for name in self._apps:
                channel.queue_delete(f"{self.prefix}.{name}")
                channel.exchange_delete(f"{self.prefix}.{name}")
