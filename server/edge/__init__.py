"""The only modules that touch the operating system: sockets, TLS, signals, files, settings.

They decide nothing of AMQP. Start with `app.py`.
"""
