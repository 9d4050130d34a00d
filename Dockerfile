# docker build --target lint .    rules and types
# docker build --target test .    the tests that need no other program
# docker build -t vouchmq .       the broker
FROM docker.io/library/python:3.13-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /app
COPY requirements/base.txt requirements/
RUN pip install --require-hashes -r requirements/base.txt

FROM base AS dev
COPY requirements/dev.txt requirements/
RUN pip install --require-hashes -r requirements/dev.txt
COPY . .

FROM dev AS lint
RUN ruff format --check -q . && ruff check -q . && mypy

FROM dev AS test
RUN pytest -q -p no:cacheprovider tests/unit tests/property tests/test_house.py tests/test_docs.py

FROM base AS runtime
# Directories where a checkout has links; the kit, Spark's part and the conformance suite stay out.
COPY vouchmq/*.py vouchmq/
COPY protocol vouchmq/protocol
COPY store vouchmq/store
COPY server vouchmq/server
RUN python -m compileall -q vouchmq \
    && groupadd --system --gid 5672 vouchmq \
    && useradd --system --uid 5672 --gid vouchmq --no-create-home --home-dir /var/lib/vouchmq vouchmq \
    && install -d -o vouchmq -g vouchmq -m 0750 /var/lib/vouchmq
# Clients of a container never come from loopback, so guest is let in from anywhere, as RabbitMQ's
# image does: set VOUCHMQ_DEFAULT_USER and VOUCHMQ_DEFAULT_PASS.
ENV VOUCHMQ_HOST=0.0.0.0 VOUCHMQ_DATA_DIR=/var/lib/vouchmq VOUCHMQ_LOOPBACK_USERS=none
USER 5672:5672
VOLUME /var/lib/vouchmq
# 5671 is for TLS, once VOUCHMQ_TLS_PORT says so.
EXPOSE 5671 5672
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["python", "-m", "vouchmq", "ping"]
ENTRYPOINT ["python", "-m", "vouchmq"]
CMD ["serve"]
