"""The Prometheus endpoint: what the broker counts, under rabbitmq_prometheus' names.

May import `vouchmq/management/`, prometheus_client and Starlette. Start with `app.py`.
"""
