"""The management process: page, HTTP API and Prometheus endpoint, beside a running broker.

    browser ─▶ web/ ─▶ api/        ─▶ broker.py ─▶ control socket
    rabbitmqadmin ─▶ api/, Prometheus ─▶ metrics/

It renders what the broker lists, and decides nothing: whether a login is right and what a command
does is the broker's. It may be killed at any time.

May import of the broker only what goes over the control socket, how logs are written and how
sockets are bound, beside Starlette, uvicorn and prometheus_client. Start with `process.py`.
"""
