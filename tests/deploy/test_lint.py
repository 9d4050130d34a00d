"""Each file in deploy/ in front of the programs that know its kind.

The linters live in an environment of their own, which the first run makes from
`requirements/deploy.txt`; promtool and systemd-analyze are Debian's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.environments import PROJECT, environment
from vouchmq.server.settings.settings import load

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("lint")]

DEPLOY: Final = PROJECT / "deploy"
CHART: Final = DEPLOY / "helm" / "vouchmq"
YAML_SIDE: Final = Path(__file__).with_name("yaml_side.py")
LIMIT_S: Final = 120
YAML_RULES: Final = (
    "{extends: default, rules: {document-start: disable, line-length: disable, "
    "comments-indentation: disable, braces: {max-spaces-inside: 0}}}"
)
COMPOSE_FILES: Final = ("compose.yaml", "replicated.yaml")
MANIFESTS: Final = ("vouchmq.yaml", "replicated.yaml")
# The oldest that the chart names, and one that is current.
KUBERNETES_VERSIONS: Final = ("1.25", "1.36")
# Of 10; what is left are the network and what tells of limits of the process.
MOST_EXPOSED: Final = 15
OPERATOR: Final = "monitoring.coreos.com/v1"
MUCH: Final = {
    "settings": {"queue_memory_bytes": 33554432, "vm_memory_high_watermark": "0.5"},
    "auth": {"existingSecret": "users"},
    "tls": {"existingSecret": "certificate"},
    "persistence": {"storageClass": "fast", "annotations": {"a": "b"}},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "grafanaDashboard": {"enabled": True},
    "imagePullSecrets": [{"name": "registry"}],
    "extraEnv": [{"name": "VOUCHMQ_NODE", "value": "shop"}],
    "extraVolumes": [{"name": "x", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
    "podLabels": {"team": "shop"},
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "broker", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}
REPLICATED: Final[dict[str, Any]] = {**MUCH, "replicated": {"enabled": True}}
LEAST: Final[dict[str, Any]] = {"podDisruptionBudget": {"enabled": False}}


@pytest.fixture(scope="module")
def linters() -> Path:
    """The folder of the linters."""
    return environment("deploy").parent


def ran(*command: str | Path, directory: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def passes(*command: str | Path, directory: Path = PROJECT) -> str:
    """One command that finds nothing wrong; what it printed."""
    done = ran(*command, directory=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documents(linters: Path, *arguments: str | Path) -> list[Any]:
    """What `yaml_side.py` finds."""
    found: list[Any] = json.loads(passes(linters / "python", YAML_SIDE, *arguments))
    return found


def rendered(linters: Path, values: object) -> list[Any]:
    return documents(linters, "render", CHART, json.dumps(values))


def of_kind(found: list[Any], kind: str) -> Any:
    """The only one of its kind."""
    [one] = [each for each in found if each["kind"] == kind]
    return one


def needs(program: str) -> str:
    """Skip the test where a program of Debian is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    return program


def test_yaml(linters: Path) -> None:
    files = sorted(
        path
        for path in DEPLOY.rglob("*.y*ml")
        if "templates" not in path.parts and not path.is_symlink()
    )
    assert len(files) >= 8
    passes(linters / "yamllint", "--strict", "-d", YAML_RULES, *files)


def test_compose(linters: Path) -> None:
    passes(
        *(linters / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"),
        *(DEPLOY / "compose" / name for name in COMPOSE_FILES),
    )


def test_the_linter_of_compose_files_bites(linters: Path, tmp_path: Path) -> None:
    text = (DEPLOY / "compose" / "compose.yaml").read_text()
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(text.replace("stop_grace_period: 60s", "stop_grace: 60s"))
    assert wrong.read_text() != text
    done = ran(linters / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", wrong)
    assert done.returncode == 1


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_files_that_compose_mounts_exist(linters: Path, name: str) -> None:
    [compose] = documents(linters, "load", DEPLOY / "compose" / name)
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert len(mounted) >= 4
    assert [each for each in mounted if not (DEPLOY / "compose" / each).exists()] == []


def test_image(linters: Path) -> None:
    passes(linters / "hadolint", PROJECT / "Dockerfile")
    scripts = [
        DEPLOY / "image" / name for name in ("vouchmq", "rabbitmqctl", "rabbitmq-diagnostics")
    ]
    passes(linters / "shellcheck", *scripts)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize(
    "values", [{}, MUCH, LEAST, REPLICATED], ids=["default", "much", "least", "replicated"]
)
def test_chart(linters: Path, tmp_path: Path, values: object, version: str) -> None:
    """What it renders is what that version of Kubernetes knows."""
    found = rendered(linters, values)
    ours = [each for each in found if each["apiVersion"] != OPERATOR]
    assert len(ours) >= 4
    for number, document in enumerate(ours):
        (tmp_path / f"{number}.yaml").write_text(json.dumps(document))
    validated(linters, version, *sorted(tmp_path.glob("*.yaml")))


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifests(linters: Path, version: str) -> None:
    validated(linters, version, *(DEPLOY / "kubernetes" / name for name in MANIFESTS))


def validated(linters: Path, version: str, *files: Path) -> None:
    passes(linters / "kubernetes-validate", "--strict", "-k", version, *files)


def test_the_linter_of_manifests_bites(linters: Path, tmp_path: Path) -> None:
    text = (DEPLOY / "kubernetes" / "vouchmq.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("failureThreshold: 360", "failureLimit: 360"))
    assert wrong.read_text() != text
    done = ran(linters / "kubernetes-validate", "--strict", "-k", "1.36", wrong)
    assert done.returncode != 0


def test_helm_finds_nothing_wrong(linters: Path) -> None:
    for values in ({}, MUCH, LEAST, REPLICATED):
        told: Any = documents(linters, "lint", CHART, json.dumps(values))
        # An icon is recommended; that is all.
        assert [each["path"] for each in told["messages"]] == ["Chart.yaml"], told
        assert told["errors"] == []


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 3},
        {"replicated": {"log": {"replicas": 1}}},
        {"persistence": {"sise": "1Gi"}},
        {"podDisruptionBudget": {"maxUnavailable": 2}},
        {"settings": {"users": []}},
    ],
)
def test_values_that_do_not_exist_are_refused(linters: Path, values: object) -> None:
    done = ran(linters / "python", YAML_SIDE, "render", CHART, json.dumps(values))
    assert done.returncode == 1
    assert "schema" in done.stderr


def test_the_chart_makes_what_the_manifest_says(linters: Path) -> None:
    """But for names and labels."""
    values = {"auth": {"existingSecret": "vouchmq"}, "image": {"tag": "latest"}}
    ours = rendered(linters, values)
    theirs = documents(linters, "load", DEPLOY / "kubernetes" / "vouchmq.yaml")
    specs = []
    for found in (ours, theirs):
        stateful = of_kind(found, "StatefulSet")["spec"]
        budget = of_kind(found, "PodDisruptionBudget")["spec"]["maxUnavailable"]
        pod, volumes = stateful["template"]["spec"], stateful["volumeClaimTemplates"]
        specs.append((pod, volumes, stateful["replicas"], budget))
    assert specs[0][0]["containers"] == specs[1][0]["containers"]
    assert specs[0] == specs[1]
    ports = [
        [port for each in found if each["kind"] == "Service" for port in each["spec"]["ports"]]
        for found in (ours, theirs)
    ]
    assert ports[0] == ports[1]


def test_names_in_the_chart_fit(linters: Path) -> None:
    """Services select the pod, and monitors a service with the port that they name."""
    manifests = [
        *documents(linters, "load", DEPLOY / "kubernetes" / "vouchmq.yaml"),
        *documents(linters, "load", DEPLOY / "kubernetes" / "monitoring.yaml"),
    ]
    for found in (rendered(linters, MUCH), manifests):
        stateful = of_kind(found, "StatefulSet")["spec"]
        pod = stateful["template"]
        labels = pod["metadata"]["labels"].items()
        [container] = pod["spec"]["containers"]
        opened = {port["name"] for port in container["ports"]}
        services = [each for each in found if each["kind"] == "Service"]
        assert stateful["serviceName"] in [each["metadata"]["name"] for each in services]
        for service in services:
            assert service["spec"]["selector"].items() <= labels
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= opened
        monitor = of_kind(found, "ServiceMonitor")["spec"]
        wanted = monitor["selector"]["matchLabels"].items()
        [endpoint] = monitor["endpoints"]
        scraped = [
            service
            for service in services
            if wanted <= service["metadata"]["labels"].items()
            and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
        ]
        assert len(scraped) == 1
        assert (
            of_kind(found, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items()
            <= labels
        )


def test_the_chart_carries_rules_and_dashboard(linters: Path) -> None:
    found = rendered(linters, MUCH)
    [alerts] = documents(linters, "load", DEPLOY / "prometheus" / "alerts.yml")
    assert of_kind(found, "PrometheusRule")["spec"] == alerts
    [board] = [
        each for each in found if each["kind"] == "ConfigMap" and "vouchmq.json" in each["data"]
    ]
    dashboard = json.loads((DEPLOY / "grafana" / "vouchmq.json").read_text())
    assert json.loads(board["data"]["vouchmq.json"]) == dashboard


def test_settings_of_the_chart_are_the_broker_s(linters: Path, tmp_path: Path) -> None:
    settings = {
        "queue_memory_bytes": 33554432,
        "vm_memory_high_watermark": "0.5",
        "management": False,
        "heartbeat_s": 7,
    }
    found = rendered(linters, {"settings": settings})
    [config] = [each for each in found if each["kind"] == "ConfigMap"]
    (tmp_path / "vouchmq.toml").write_text(config["data"]["vouchmq.toml"])
    chosen = load({"config": str(tmp_path / "vouchmq.toml")}, {})
    assert {name: getattr(chosen, name) for name in settings} == settings


def test_rules_of_prometheus() -> None:
    """Their syntax, and what they find in a healthy and in a troubled broker."""
    promtool = needs("promtool")
    place = DEPLOY / "prometheus"
    passes(promtool, "check", "config", "prometheus.yml", directory=place)
    passes(promtool, "check", "rules", "alerts.yml", directory=place)
    passes(promtool, "test", "rules", "alerts_test.yml", directory=place)


def test_each_alert_is_tested() -> None:
    place = DEPLOY / "prometheus"
    alerts = {
        line.split("alert:")[1].strip()
        for line in (place / "alerts.yml").read_text().splitlines()
        if "- alert:" in line
    }
    tests = (place / "alerts_test.yml").read_text()
    assert len(alerts) > 10
    assert [each for each in sorted(alerts) if tests.count(each) < 2] == []


def test_queries_of_the_dashboard(tmp_path: Path) -> None:
    """As rules, which promtool parses."""
    promtool = needs("promtool")
    dashboard = json.loads((DEPLOY / "grafana" / "vouchmq.json").read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    assert len(queries) > 30
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    passes(promtool, "check", "rules", file)


def test_systemd(tmp_path: Path) -> None:
    """The unit has no mistake, and leaves little open."""
    analyze = needs("systemd-analyze")
    unit = tmp_path / "vouchmq.service"
    text = (DEPLOY / "systemd" / "vouchmq.service").read_text()
    # It has to be there.
    unit.write_text(text.replace("/opt/vouchmq/bin/vouchmq", shutil.which("true") or ""))
    done = ran(analyze, "verify", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    unit.write_text(f"{unit.read_text()}\n[Service]\nRestrt=no\n")
    assert "Restrt" in ran(analyze, "verify", unit).stderr
    exposure = ("security", "--offline=true", f"--threshold={MOST_EXPOSED}")
    passes(analyze, *exposure, DEPLOY / "systemd" / "vouchmq.service")
