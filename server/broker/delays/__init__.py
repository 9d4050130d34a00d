"""Delayed messages: the x-delay header and the queue that holds them until they are due.

Start with `delay.py`.
"""
