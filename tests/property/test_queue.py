"""A queue against a list: who gets which message, told redelivered or not, and what is on disk."""

from __future__ import annotations

from hypothesis import settings

from tests.property.queue_machine import QueueMachine

QueueMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase
