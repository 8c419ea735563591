"""What /metrics says of a real operator at work."""

from cluster.objects import Objects
from cluster.stack import Stack
from cluster.waiting import until
from prometheus_client.parser import text_string_to_metric_families

COMMAND = {"name": "main", "command": ["sh", "-c", 'printf up > "$OUTHAUL_OUTPUTS/state"']}


class Scrape:
    """What was served at one moment."""

    def __init__(self, stack: Stack) -> None:
        status, self.text = stack.operator_answer("/metrics")
        assert status == 200
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 where there is none."""
        return self._samples.get((name, frozenset(labels.items())), 0)


def test_a_run_is_counted(objects: Objects, stack: Stack) -> None:
    """A run that succeeds counts once, by engine, action and result, with the time that its outputs took."""
    before = Scrape(stack)
    objects.install("service", engine="exec", commands={"install": [COMMAND]})
    objects.ready("service")
    after = Scrape(stack)

    def more(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    assert more("outhaul_runs_total", engine="exec", action="install", result="Succeeded") == 1
    assert more("outhaul_publish_seconds_count") == 1
    assert more("outhaul_api_requests_total", verb="create", resource="pods", code="201") == 1
    assert more("outhaul_api_request_seconds_count", verb="create") >= 4
    assert after.value("outhaul_installations", phase="Succeeded") >= 1
    assert after.value("outhaul_agentactions", phase="Succeeded") >= 1
    assert objects.namespace not in after.text


def test_a_run_of_nobody_s_is_counted(objects: Objects, stack: Stack) -> None:
    """A failed run that no Installation has made counts as such."""
    labels = {"engine": "none", "action": "install", "result": "Failed"}
    before = Scrape(stack).value("outhaul_runs_total", **labels)
    spec = {"action": "install", "commands": [{"name": "main", "command": ["false"]}]}
    objects.create("AgentAction", "alone", spec=spec)
    objects.ended("alone")
    until(lambda: Scrape(stack).value("outhaul_runs_total", **labels) == before + 1, what="it is counted")


def test_a_leader_tells_how_it_is(stack: Stack) -> None:
    """Leadership, the age of each watch, and each queue have a value, also where nothing happens."""
    found = Scrape(stack)
    assert found.value("outhaul_leader") == 1
    for resource in ("installations", "agentactions", "agentconfigs", "pods"):
        assert 0 < found.value("outhaul_watch_age_seconds", resource=resource) < 210
    for queue in ("installations", "runs"):
        assert f'outhaul_queue_waiting{{queue="{queue}"}}' in found.text
        assert f'outhaul_queue_retries_total{{queue="{queue}"}}' in found.text
