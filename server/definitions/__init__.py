"""Definitions files as RabbitMQ exports them: read, check, apply, export.

May import `broker/`, `auth/`, `settings/` for checks of values, and msgspec. Start with
`importer.py`.
"""
