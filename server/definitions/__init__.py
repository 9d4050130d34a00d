"""Definitions files as RabbitMQ exports them: read, check, apply, export.

Start with `importer.py`.
"""
