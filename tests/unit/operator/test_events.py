"""Kubernetes events: once a fact, valid, and never a reason to fail."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from builders import UID, installation_object
from outhaul_api.vocabulary import Reason
from outhaul_operator import events
from outhaul_operator.apierrors import UnavailableError
from scripted import Answer, failure, serving

OBJECT = installation_object()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


async def said(folder: Path, *facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Says facts, and returns the events that were written."""
    async with serving(folder) as (server, cluster):
        for fact in facts:
            server.will(Answer(201))
            given = {"obj": OBJECT, "type_": "Normal", "reason": Reason.SUCCEEDED, "message": "it did", **fact}
            await events.emit(cluster, **given)
        assert all(
            (one.method, one.url.split("?")[0]) == ("POST", "/api/v1/namespaces/tenant/events")
            for one in server.requests
        )
        return [one.body for one in server.requests]


async def test_an_event_is_valid(tmp_path: Path) -> None:
    """An event is one that the API server takes, about the object, in its namespace."""
    (event,) = await said(tmp_path, {"type_": "Warning"})
    kubernetes_validate.validate(event, kubernetes_validate.latest_version(), strict=True)
    assert event["involvedObject"] == {
        "apiVersion": "outhaul.dev/v1alpha1",
        "kind": "Installation",
        "name": "shop",
        "namespace": "tenant",
        "uid": UID,
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Succeeded", "it did")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["firstTimestamp"])


async def test_a_long_message_is_cut(tmp_path: Path) -> None:
    """A message is as long as the API allows."""
    (event,) = await said(tmp_path, {"message": "ä" * 2000})
    assert event["message"] == "ä" * 1024


async def test_one_fact_has_one_name(tmp_path: Path) -> None:
    """A repeated step makes the same event, which then exists; whatever differs makes another."""
    other = {**OBJECT, "metadata": {**OBJECT["metadata"], "uid": "other"}}
    facts: list[dict[str, Any]] = [
        {},
        {},
        {"fact": "run 2"},
        {"message": "it did not"},
        {"reason": Reason.RUN_FAILED},
        {"type_": "Warning"},
        {"obj": other},
    ]
    names = [event["metadata"]["name"] for event in await said(tmp_path, *facts)]
    assert names[0] == names[1]
    assert len(set(names)) == len(facts) - 1


@pytest.mark.parametrize("answer", [failure(409, "AlreadyExists"), failure(403, "Forbidden"), failure(422, "Invalid")])
async def test_what_was_said_or_cannot_be_said_is_no_failure(tmp_path: Path, answer: Answer) -> None:
    """An event that exists, or that the namespace takes no more, is let go."""
    async with serving(tmp_path) as (server, cluster):
        server.will(answer)
        await events.emit(cluster, OBJECT, "Normal", Reason.SUCCEEDED, "it did")
        assert len(server.requests) == 1


async def test_an_event_holds_nothing_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be said as an event is in the log, and whoever says it goes on."""
    async with serving(tmp_path) as (server, cluster):
        server.will(failure(503, "ServiceUnavailable"))
        await events.emit(cluster, OBJECT, "Normal", Reason.SUCCEEDED, "it did")
    assert "Succeeded: it did (there is no event of it: " in caplog.text


async def test_what_must_be_said_is_no_less(tmp_path: Path) -> None:
    """Whoever goes on only once it is said hears that it could not be."""
    async with serving(tmp_path) as (server, cluster):
        server.will(failure(503, "ServiceUnavailable"))
        with pytest.raises(UnavailableError):
            await events.emit(cluster, OBJECT, "Normal", Reason.SUCCEEDED, "it did", must=True)


SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@pytest.mark.parametrize("tail", ["a" * 23, "-" + "a" * 22, ".a" * 11 + "b", "b--" + "a" * 20, "--.a"])
async def test_an_events_name_is_valid_whatever_the_objects(tmp_path: Path, tail: str) -> None:
    """A long name is cut where the event's name stays valid."""
    name = ("n" * 229 + tail)[:253]
    metadata = {**OBJECT["metadata"], "name": name}
    (event,) = await said(tmp_path, {"obj": {**OBJECT, "metadata": metadata}})
    assert SUBDOMAIN.fullmatch(event["metadata"]["name"])
    assert len(event["metadata"]["name"]) <= 253
