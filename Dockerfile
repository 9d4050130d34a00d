# docker build --target lint .    rules and types
# docker build --target test .    the tests that need no other program
# docker build -t vouchmq .       the broker
FROM docker.io/library/python:3.13-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /app
COPY requirements/base.txt requirements/
RUN pip install --no-deps --require-hashes -r requirements/base.txt

FROM base AS dev
COPY requirements/dev.txt requirements/
RUN pip install --no-deps --require-hashes -r requirements/dev.txt
COPY . .

FROM dev AS lint
RUN ruff format --check -q . && ruff check -q . && mypy

FROM dev AS test
RUN pytest -q -p no:cacheprovider tests/unit tests/property tests/test_house.py tests/test_docs.py

FROM base AS compiled
# The compiler of the base image's Debian, whichever that is; it does not get into the image.
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/compile.txt requirements/
RUN pip install --no-deps --require-hashes -r requirements/compile.txt
# Directories where a checkout has links; the kit, Spark's part and the conformance suite stay out.
COPY vouchmq/*.py vouchmq/
COPY protocol vouchmq/protocol
COPY store vouchmq/store
COPY server vouchmq/server
COPY vouchmq/management vouchmq/management
COPY setup.py pyproject.toml README.md ./
RUN python setup.py -q build_ext --inplace \
    && rm -rf build setup.py pyproject.toml README.md requirements \
    && strip --strip-unneeded ./*.so \
    && python -m compileall -q vouchmq \
    && python -c "from vouchmq.server.version import build_kind as kind; assert kind() == 'compiled'"

FROM base AS runtime
COPY --from=compiled /app /app
COPY deploy/image/vouchmq deploy/image/rabbitmqctl deploy/image/rabbitmq-diagnostics /usr/local/bin/
COPY deploy/image/defaults.toml /etc/vouchmq/
# The directory is of root's group, in which a container runs that is given any user.
RUN groupadd --system --gid 5672 vouchmq \
    && useradd --system --uid 5672 --gid vouchmq --no-create-home --home-dir /var/lib/vouchmq vouchmq \
    && install -d -o vouchmq -g root -m 0770 /var/lib/vouchmq
ENV PYTHONPATH=/app PYTHONSAFEPATH=1 VOUCHMQ_DEFAULTS=/etc/vouchmq/defaults.toml
USER 5672:5672
VOLUME /var/lib/vouchmq
# 5671 is for TLS, once VOUCHMQ_TLS_PORT says so; 15671 and 15691 with VOUCHMQ_MANAGEMENT_TLS.
EXPOSE 5671 5672 15671 15672 15691 15692
STOPSIGNAL SIGTERM
# It counts as soon as it has succeeded once; a recovery may take its time.
HEALTHCHECK --interval=10s --timeout=10s --start-period=30m --retries=3 CMD ["vouchmq", "ping"]
ENTRYPOINT ["vouchmq"]
CMD ["serve"]
