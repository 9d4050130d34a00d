"""Making the format known: which class a session gets, and which interpreter its workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

pytest.importorskip("pyspark")

import vouchmq.spark
from vouchmq.spark.data_source import AmqpDataSource, SpeculativeAmqpDataSource
from vouchmq.spark.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Session:
    """As much of a session as `register` touches."""

    def __init__(self, master: str, settings: dict[str, str] | None = None) -> None:
        self.registered: list[type] = []
        self.sparkContext = SimpleNamespace(
            master=master, pythonExec="python3", getConf=lambda: settings or {}
        )
        self.dataSource = SimpleNamespace(register=self.registered.append)


def registered(session: Session) -> Session:
    vouchmq.spark.register(cast("SparkSession", session))
    return session


@pytest.mark.parametrize("master", ["local[2]", "local[2,4]", "local-cluster[2,1,900]"])
def test_workers_on_this_machine_have_its_packages(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert registered(Session(master)).sparkContext.pythonExec == worker_python()


def test_the_interpreter_of_a_cluster_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert registered(Session("spark://host:7077")).sparkContext.pythonExec == "python3"


def test_an_interpreter_that_the_user_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    assert registered(Session("local[2]")).sparkContext.pythonExec == "python3"


@pytest.mark.parametrize(
    ("speculation", "kind"),
    [(None, AmqpDataSource), ("false", AmqpDataSource), ("true", SpeculativeAmqpDataSource)],
)
def test_a_server_of_spark_connect_is_asked_what_it_does(
    speculation: str | None, kind: type[AmqpDataSource]
) -> None:
    """Its client has no context, and no interpreter to choose."""
    kept = {} if speculation is None else {"spark.speculation": speculation}
    found: list[type] = []
    session = SimpleNamespace(conf=kept, dataSource=SimpleNamespace(register=found.append))
    vouchmq.spark.register(cast("SparkSession", session))
    assert found == [kind]


def test_a_session_that_speculates_gets_a_class_that_knows() -> None:
    assert registered(Session("local[2]")).registered == [AmqpDataSource]
    speculating = Session("local[2]", {"spark.speculation": "true"})
    assert registered(speculating).registered == [SpeculativeAmqpDataSource]
