"""Compose file and manifests for brokers that share a log: names, settings and files fit together.

What needs `haproxy` or `nats-server` is skipped where they are not installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from base64 import b64decode
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest

from tests.engine.servers import MISSING, free_ports, program
from tests.environments import PROJECT, environment
from vouchmq.server.edge.replicated.engine import engine_of
from vouchmq.server.settings.settings import load

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("lint")]

DEPLOY: Final = PROJECT / "deploy"
YAML_SIDE: Final = Path(__file__).with_name("yaml_side.py")
LIMIT_S: Final = 60
# Digits only, so that it must not be taken for a number.
PASSWORD: Final = "0123456789"
CHOSEN: Final = {
    "LOG_PASSWORD": PASSWORD,
    "LOG_SECRET": PASSWORD,
    "VOUCHMQ_DEFAULT_USER": "shop",
    "VOUCHMQ_DEFAULT_PASS": "secret",
}
BROKERS: Final = ["vouchmq-0", "vouchmq-1", "vouchmq-2"]
COMPOSE_LOGS: Final = ["log-0", "log-1", "log-2"]
LOG_SERVICE: Final = "vouchmq-log"
LOGS: Final = [f"{LOG_SERVICE}-{number}.{LOG_SERVICE}" for number in range(3)]
CHART_LABELS: Final = ("app.kubernetes.io/", "helm.sh/")
# What Docker needs: addresses of containers change, those of services do not.
DNS_ONLY: Final = re.compile(
    r" init-addr \S+ resolvers names$|\n# Names of containers.*?\n(?=\nlisten)", re.DOTALL | re.M
)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The services."""
    [found] = loaded("compose/replicated.yaml")
    services: dict[str, Any] = found["services"]
    return services


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], Any]:
    """Each by its kind and name."""
    found = loaded("kubernetes/replicated.yaml")
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def loaded(name: str) -> list[Any]:
    return documents("load", DEPLOY / name)


def documents(*arguments: str | Path) -> list[Any]:
    done = subprocess.run(
        [environment("deploy"), YAML_SIDE, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def substituted(text: str) -> str:
    """With the variables that Compose and Kubernetes put in."""
    return re.sub(r"\$[{(](\w+)(?::\?[^})]*)?[})]", lambda found: CHOSEN[found[1]], text)


def of_container(container: Any) -> dict[str, str]:
    """The environment of a container, without what comes from elsewhere."""
    return {
        each["name"]: substituted(each["value"]) for each in container["env"] if "value" in each
    }


def only_container(document: Any) -> Any:
    [container] = document["spec"]["template"]["spec"]["containers"]
    return container


def check_log(variables: dict[str, str], hosts: list[str]) -> None:
    """The broker takes these settings, and finds these servers with this password."""
    engine = engine_of(load({}, variables))
    assert [(each.host, each.port) for each in engine.servers] == [(each, 4222) for each in hosts]
    assert engine.options.credentials.password == PASSWORD
    assert list(engine.monitors) == [f"http://{host}:8222" for host in hosts]


def test_brokers_of_compose_find_the_log(compose: dict[str, Any]) -> None:
    for name in (*BROKERS, "create"):
        variables = {key: substituted(value) for key, value in compose[name]["environment"].items()}
        check_log(variables, COMPOSE_LOGS)
        assert variables.get("VOUCHMQ_NODE", name) == name
    assert compose["create"]["command"] == ["ha", "create"]
    assert compose["create"]["profiles"] == ["create"]
    assert sorted(compose["create"]["depends_on"]) == COMPOSE_LOGS


def test_pods_of_kubernetes_find_the_log(manifests: dict[tuple[str, str], Any]) -> None:
    for key in (("StatefulSet", "vouchmq"), ("Job", "vouchmq-create")):
        check_log(of_container(only_container(manifests[key])), LOGS)
    job = only_container(manifests["Job", "vouchmq-create"])
    assert job["args"][:2] == ["ha", "create"]
    assert manifests["StatefulSet", LOG_SERVICE]["spec"]["serviceName"] == LOG_SERVICE


def test_kubernetes_has_the_same_files(manifests: dict[tuple[str, str], Any]) -> None:
    log = (DEPLOY / "nats" / "log.conf").read_text()
    assert manifests["ConfigMap", LOG_SERVICE]["data"] == {"log.conf": log}
    balancer = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    shortened, count = DNS_ONLY.subn("", balancer)
    assert count == 2
    assert manifests["ConfigMap", "vouchmq-balancer"]["data"] == {"haproxy.cfg": shortened}


def test_each_broker_of_the_balancer_is_a_service(
    compose: dict[str, Any], manifests: dict[tuple[str, str], Any]
) -> None:
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    named = re.findall(r"^    server (\S+) (\S+):(?:5672|15672)\b", text, re.MULTILINE)
    assert sorted(named) == sorted((each, each) for each in 2 * BROKERS)
    assert set(BROKERS) <= compose.keys()
    for name in BROKERS:
        service = manifests["Service", name]["spec"]
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == name
        # A leader must be found at once, not after the next probe.
        assert service["publishNotReadyAddresses"] is True


def test_selectors_select_pods(manifests: dict[tuple[str, str], Any]) -> None:
    pods = [
        each["spec"]["template"]["metadata"]["labels"]
        for (kind, _), each in manifests.items()
        if kind in ("StatefulSet", "Deployment", "Job")
    ]
    selectors = [
        each["spec"]["selector"].get("matchLabels", each["spec"]["selector"])
        for (kind, _), each in manifests.items()
        if kind in ("Service", "PodDisruptionBudget")
    ]
    assert len(selectors) == 9
    for selector in selectors:
        wanted = {key: value for key, value in selector.items() if "/" not in key}
        assert len([each for each in pods if wanted.items() <= each.items()]) == 1


def test_a_standby_counts_as_ready_when_it_could_take_over(
    manifests: dict[tuple[str, str], Any],
) -> None:
    """So that a roll-out replaces one after the other; and no long recovery is cut off."""
    stateful = manifests["StatefulSet", "vouchmq"]["spec"]
    container = only_container(manifests["StatefulSet", "vouchmq"])
    assert container["readinessProbe"]["exec"]["command"] == ["vouchmq", "ha", "status"]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert liveness["exec"] == startup["exec"]
    limits_s = [each["periodSeconds"] * each["failureThreshold"] for each in (startup, liveness)]
    assert limits_s[1] >= limits_s[0]
    assert (stateful["replicas"], stateful["podManagementPolicy"]) == (3, "Parallel")


def test_the_pod_is_that_of_one_broker(manifests: dict[tuple[str, str], Any]) -> None:
    """But for what the log needs."""
    [one] = [each for each in loaded("kubernetes/vouchmq.yaml") if each["kind"] == "StatefulSet"]
    three = deepcopy(manifests["StatefulSet", "vouchmq"])
    specs = []
    for each in (one, three):
        pod = each["spec"]["template"]["spec"]
        pod.pop("affinity", None)
        pod.pop("topologySpreadConstraints", None)
        pod.pop("initContainers", None)
        container = only_container(each)
        variables = {each["name"]: each for each in container.pop("env")}
        for name in ("readinessProbe", "livenessProbe"):
            container.pop(name)
        specs.append((pod, variables, each["spec"]["volumeClaimTemplates"]))
    (one_pod, one_variables, one_volumes), (pod, variables, volumes) = specs
    assert (pod, volumes) == (one_pod, one_volumes)
    assert one_variables.items() <= variables.items()
    assert variables.keys() - one_variables.keys() == {
        *("LOG_PASSWORD", "VOUCHMQ_NODE", "VOUCHMQ_HA_LOG", "VOUCHMQ_HA_MONITORS")
    }


def compared(value: Any) -> Any:
    """With the labels of the manifest in place of the chart's, and without what only one has."""
    if isinstance(value, list):
        return [compared(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if key not in ("annotations", "type")}
    if (name := kept.get("app.kubernetes.io/name")) is not None:
        own = {key: each for key, each in kept.items() if not key.startswith(CHART_LABELS)}
        return {"app": name, **own}
    return {key: compared(each) for key, each in kept.items()}


def test_the_chart_makes_what_the_manifest_says(manifests: dict[tuple[str, str], Any]) -> None:
    """But for names, labels and the restarts after a change."""
    values = {
        "auth": {"existingSecret": "vouchmq"},
        "image": {"tag": "latest"},
        "replicated": {"enabled": True, "log": {"existingSecret": "vouchmq-log"}},
    }
    text = json.dumps(documents("render", DEPLOY / "helm" / "vouchmq", json.dumps(values)))
    found = {
        (each["kind"], each["metadata"]["name"]): each
        for each in json.loads(text.replace("shop-vouchmq", "vouchmq"))
    }
    assert found.keys() - manifests.keys() == {("Pod", "vouchmq-ping")}
    for key, theirs in manifests.items():
        for part in ("spec", "data"):
            assert compared(found[key].get(part)) == compared(theirs.get(part)), key


def test_the_pod_of_helm_test_is_no_broker() -> None:
    """With the labels of one it would be kept off the nodes of all three."""
    values = {"replicated": {"enabled": True}}
    found = documents("render", DEPLOY / "helm" / "vouchmq", json.dumps(values))
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    labels = named["Pod", "shop-vouchmq-ping"]["metadata"]["labels"]
    selector = named["StatefulSet", "shop-vouchmq"]["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= labels.items()


def test_a_broker_waits_for_the_log_before_its_first_start(
    manifests: dict[tuple[str, str], Any],
) -> None:
    """Without it brokers end, and are restarted later and later."""
    stateful = manifests["StatefulSet", "vouchmq"]
    [wait] = stateful["spec"]["template"]["spec"]["initContainers"]
    broker = of_container(only_container(stateful))
    check_log(of_container(wait), LOGS)
    assert of_container(wait).items() <= broker.items()
    assert "vouchmq doctor" in wait["command"][-1]


def test_a_password_that_the_chart_makes_fits_into_addresses() -> None:
    """And TLS goes through the balancer."""
    values = {"replicated": {"enabled": True}, "tls": {"existingSecret": "certificate"}}
    found = documents("render", DEPLOY / "helm" / "vouchmq", json.dumps(values))
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    secret = named["Secret", "shop-vouchmq-log"]["data"]["password"]
    assert re.fullmatch(r"[A-Za-z0-9]{48}", b64decode(secret).decode())
    balancer = named["ConfigMap", "shop-vouchmq-balancer"]["data"]["haproxy.cfg"]
    assert balancer.count(":5671") == 1 + len(BROKERS)


def test_configuration_of_the_balancer(
    tmp_path: Path, manifests: dict[tuple[str, str], Any]
) -> None:
    """HAProxy takes both."""
    found = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip("haproxy is not installed")
    shortened = manifests["ConfigMap", "vouchmq-balancer"]["data"]["haproxy.cfg"]
    for number, text in enumerate(
        (
            (DEPLOY / "haproxy" / "haproxy.cfg").read_text(),
            # Without names that nobody knows here.
            re.sub(r"(server \S+) vouchmq-\d", r"\1 127.0.0.1", shortened),
        )
    ):
        file = tmp_path / f"{number}.cfg"
        file.write_text(text)
        done = subprocess.run(
            [found, "-c", "-f", file], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(program() is None, reason=MISSING)
@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_configuration_of_the_log(
    kind: str, tmp_path: Path, compose: dict[str, Any], manifests: dict[tuple[str, str], Any]
) -> None:
    """nats-server takes it, with the environment that each platform gives."""
    if kind == "compose":
        variables = {
            key: substituted(value) for key, value in compose["log-0"]["environment"].items()
        }
    else:
        variables = of_container(only_container(manifests["StatefulSet", LOG_SERVICE]))
        variables["LOG_NAME"] = "vouchmq-log-0"
    found = program()
    assert found is not None
    text = (DEPLOY / "nats" / "log.conf").read_text()
    ports = dict(zip(("4222", "8222", "6222"), free_ports(3), strict=True))
    for before, after in ports.items():
        text = text.replace(f":{before}", f":{after}")
    file = tmp_path / "log.conf"
    file.write_text(text.replace("/data", str(tmp_path / "data")))
    for change, code in ({}, 0), ({"LOG_PASSWORD": PASSWORD}, 1), ({"LOG_ROUTES": "routes"}, 1):
        done = subprocess.run(
            [found, "-t", "-c", file],
            env={**variables, **change},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == code, (change, done.stderr)
