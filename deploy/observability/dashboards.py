"""The Grafana dashboards: ``python deploy/observability/dashboards.py`` makes their JSON of ``dashboards.yaml``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
MADE = HERE / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "omnibus"}
WIDE, HIGH = 24, 8  # of Grafana's grid


def files() -> dict[str, str]:
    """The text of each dashboard's file by its name."""
    described = yaml.safe_load((HERE / "dashboards.yaml").read_text())
    return {f"{name}.json": json.dumps(_document(name, each), indent=1) + "\n" for name, each in described.items()}


def _document(name: str, described: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "uid": f"omnibus-{name}",
        "title": described["title"],
        "tags": ["omnibus"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_models()] if described["models"] else []},
        "panels": list(_panels(described["rows"])),
    }


def _models() -> dict[str, Any]:
    """The choice of models at the top."""
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(omnibus_planner_executors_wanted, model)", "refId": "models"},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    top = number = 0
    for title, panels in rows.items():
        number += 1
        at = _at(0, top, WIDE, 1)
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": at}
        top += 1
        across = 4 if len(panels) % 4 == 0 else 3
        width = WIDE // across
        for index, panel in enumerate(panels):
            number += 1
            yield _panel(number, panel, _at(index % across * width, top + index // across * HIGH, width, HIGH))
        top += -(-len(panels) // across) * HIGH


def _panel(number: int, panel: Mapping[str, Any], at: Mapping[str, int]) -> dict[str, Any]:
    lines = panel["queries"] if "queries" in panel else _quantiles(**panel["quantiles"])
    return {
        "id": number,
        "type": "timeseries",
        "title": panel["title"],
        "description": panel.get("about", ""),
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel["unit"], "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(65 + index), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(lines.items())
        ],
    }


def _quantiles(of: str, by: str, at: Sequence[float], where: str = "") -> dict[str, str]:
    """The histogram ``of`` at some quantiles, a line for each of ``by``."""
    chosen = f"{{{where}}}" if where else ""
    found = f"sum by (le, {by}) (rate({of}_bucket{chosen}[$__rate_interval]))"
    return {f"{{{{{by}}}}} p{each * 100:g}": f"histogram_quantile({each:g}, {found})" for each in at}


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def main() -> None:
    MADE.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (MADE / name).write_text(text)


if __name__ == "__main__":
    main()
