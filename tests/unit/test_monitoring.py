"""examples/monitoring: every metric named there is exported, and Prometheus's own tools and server take the files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_builder import PageBuilder
from prometheus_client import CollectorRegistry
from prometheus_server import MONITORING, Server
from support import offered

from pyalloc.metrics.capacity import capacity
from pyalloc.metrics.collectors import HostCollector, ProcessCollector
from pyalloc.metrics.host import Host
from pyalloc.metrics.naming import COUNTER
from pyalloc.metrics.server import start

DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
VARIABLES = {"__rate_interval": "1m", "__range": "1h", "instance": ".*", "program": ".*", "pid": ".*", "device": ".*"}


def dashboard_queries() -> list[str]:
    """Every query of the dashboard, with its variables as they are when all is chosen."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    found += [
        re.sub(r"label_values\((.*), \w+\)", r"\1", variable["definition"])
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    ]
    return [re.sub(r"\$(\w+)", lambda match: VARIABLES[match[1]], query) for query in found]


def alert_queries() -> list[str]:
    """Every expression of alerts.yml, on one line or folded over several."""
    text = (MONITORING / "alerts.yml").read_text()
    return [" ".join(found.split()) for found in re.findall(r"expr: (?:>\n)?(.+?)\n +(?:for|labels):", text, re.DOTALL)]


def adapter_query() -> str:
    """The adapter's, for pods of a name space, as it would ask."""
    text = (MONITORING / "adapter.yml").read_text()
    query = " ".join(text.partition("metricsQuery: >-")[2].split())
    return query.replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", 'namespace="x"')


def test_every_metric_named_is_exported() -> None:
    families = [*ProcessCollector().describe(), *HostCollector(Host()).collect()]
    exported = {f"{one.name}_total" if one.type == COUNTER else one.name for one in families}
    named = set()
    for path in MONITORING.iterdir():
        found = set(re.findall(r"\bpyalloc_[a-z_]+", path.read_text())) - {"pyalloc_kv_utilization"}
        assert found <= exported, f"{path.name}: {sorted(found - exported)}"
        named |= found
    assert len(named) > 30
    whole = {name for name in exported if "_rung_" in name or "process_oom_" in name}
    assert whole <= named, "the panels of reasons and rungs show all there are"
    assert len(alert_queries()) == (MONITORING / "alerts.yml").read_text().count("- alert:")


def test_the_autoscaler_asks_for_what_the_adapter_makes() -> None:
    assert "name: pyalloc_kv_utilization" in (MONITORING / "hpa.yml").read_text()
    assert "as: pyalloc_kv_utilization" in (MONITORING / "adapter.yml").read_text()


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in covered) < 24
        assert not covered & cells, f"{panel['title']} lies on another panel"
        cells |= covered
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert DASHBOARD["templating"]["list"][0]["name"] == "datasource"


def promtool(*arguments: str) -> None:
    offered(shutil.which("promtool"), "checking rules needs promtool (Debian: prometheus)")
    done = subprocess.run(
        ["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "prometheus.yml")


def test_each_alert_comes_when_it_is_due() -> None:
    promtool("test", "rules", "alerts_test.yml")
    tested = (MONITORING / "alerts_test.yml").read_text()
    for name in re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text()):
        assert re.search(rf"alertname: {name}\n +exp_alerts", tested), f"{name} has no test"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageBuilder:
    """A process, whose name and pool have what needs escaping."""
    monkeypatch.setenv("PYALLOC_SHARED_FOLDER", str(tmp_path))
    builder = PageBuilder(4711, program='se"r\\ve.py')
    builder.devices[0] |= {"margin": 3 << 30, "num_ooms": 1}
    builder.pools.append({**builder.pools[0], "name": "kv"})
    sizes = ("margin", "used", "allocated", "reserved", "requested", "idle", "shelf", "free")
    builder.described = dict.fromkeys(sizes, ("gauge", "bytes")) | {"num_ooms": ("counter", "errors")}
    builder.write()
    return builder


@pytest.fixture
def prometheus(tmp_path: Path, page: PageBuilder) -> Iterator[Server]:
    host, registry = Host(), CollectorRegistry()
    registry.register(HostCollector(host))
    exporter = start(0, "127.0.0.1", registry, lambda: capacity(host.look().processes))
    with exporter, Server(tmp_path, exporter.port) as server:
        yield server


def test_a_prometheus_server_scrapes_and_answers_every_query(prometheus: Server, page: PageBuilder) -> None:
    (series,) = prometheus.wait_for("pyalloc_device_margin_bytes")
    assert series["value"][1] == str(3 << 30)
    assert series["metric"] == {
        "__name__": "pyalloc_device_margin_bytes",
        "device": "0",
        "instance": series["metric"]["instance"],
        "job": "pyalloc",
        "pid": "4711",
        "program": 'se"r\\ve.py',
    }
    assert prometheus.wait_for("up == 1")
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert target["lastError"] == ""
    for query in [*dashboard_queries(), *alert_queries(), adapter_query()]:
        prometheus.query(query)  # an error is a status of 400, which raises
    with_figures = [query for query in dashboard_queries() if prometheus.query(query)]
    assert len(with_figures) > 12
    # Another refusal is an alert.
    page.devices[0]["num_ooms"] = 5
    page.write()
    (alert,) = prometheus.wait_for('ALERTS{alertname="PyallocOutOfMemory"}')
    assert alert["metric"]["alertstate"] == "firing"
    # The process goes, and so do its series; the exporter is still there.
    page.end()
    prometheus.wait_for('pyalloc_exporter_pages{state="read"} == 0')
    assert prometheus.query("pyalloc_device_margin_bytes") == []
    assert prometheus.query("up == 1")
