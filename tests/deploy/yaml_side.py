"""Runs in the environment of the linters, which has YAML and Helm; prints JSON.

python yaml_side.py load FILE…            the documents of YAML files
python yaml_side.py render CHART VALUES   those of a chart with values, given as JSON
python yaml_side.py lint CHART VALUES     what Helm finds wrong with it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml


def load(*files: str) -> list[Any]:
    return [each for name in files for each in yaml.safe_load_all(Path(name).read_text()) if each]


def render(chart: str, values: str) -> list[Any]:
    with helm.Chart.load(chart) as loaded:
        loaded.validate_schema(json.loads(values))
        manifests = loaded.render(json.loads(values), name="shop", namespace="prod")
    texts = (text for name, text in sorted(manifests.items()) if name.endswith(".yaml"))
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def lint(chart: str, values: str) -> Any:
    return helm.lint(chart, json.loads(values))


def main(command: str, *arguments: str) -> None:
    commands: dict[str, Callable[..., Any]] = {"load": load, "render": render, "lint": lint}
    sys.stdout.write(json.dumps(commands[command](*arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
