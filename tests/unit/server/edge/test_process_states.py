"""The service manager hears of a broker that serves, and of its end."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess
from vouchmq.server.edge.process import IS_READY, IS_STOPPING, NOTIFY_VARIABLE, notify


def listening(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.settimeout(60)
    listener.bind(address)
    return listener


def test_a_start_and_a_stop_are_told(tmp_path: Path) -> None:
    """Behind the ready line: who is told can connect."""
    with listening(f"{tmp_path}/notify") as manager:
        broker = BrokerProcess(tmp_path, environment={NOTIFY_VARIABLE: f"{tmp_path}/notify"})
        broker.start()
        try:
            assert manager.recv(100).decode() == IS_READY
            assert broker.stop() == 0
            assert manager.recv(100).decode() == IS_STOPPING
        finally:
            broker.kill9()


def test_abstract_names_have_a_zero(tmp_path: Path) -> None:
    name = f"vouchmq-test{tmp_path}"
    with listening(f"\0{name}") as manager:
        notify(IS_READY, {NOTIFY_VARIABLE: f"@{name}"})
        assert manager.recv(100).decode() == IS_READY


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "vsock:2:1234"])
def test_a_manager_that_does_not_listen_is_no_fault(address: str) -> None:
    notify(IS_READY, {NOTIFY_VARIABLE: address})
