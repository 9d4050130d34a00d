"""Calls the services of `nameko_services` from outside; prints what it got as JSON.

`nameko_caller.py URL PREFIX METHOD TEXT...` calls METHOD once for each TEXT, all at once.
"""

from __future__ import annotations

import json
import sys

from nameko.exceptions import RemoteError, UnknownService
from nameko.standalone.rpc import ClusterRpcProxy


def main() -> None:
    """Call and print results, or the errors in their place."""
    url, prefix, service, method, *texts = sys.argv[1:]
    results = []
    with ClusterRpcProxy({"AMQP_URI": url}, timeout=15) as cluster:
        target = getattr(cluster[f"{prefix}-{service}"], method)
        try:
            calls = [target.call_async(text) for text in texts] or [target.call_async()]
        except UnknownService as error:
            sys.stdout.write(json.dumps([f"unknown {error._service_name}"]))
            return
        for call in calls:
            try:
                results.append(call.result())
            except RemoteError as error:
                results.append(f"{error.exc_type}: {error.value}")
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
