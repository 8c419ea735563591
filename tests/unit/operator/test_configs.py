"""The AgentConfig of a run: three layers, resolved as Porter does."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.vocabulary import API_VERSION, Reason
from outhaul_operator import configs
from outhaul_operator.apierrors import UnavailableError
from outhaul_operator.verdicts import StalledError, WaitingError
from scripted import Answer, failure, serving

ABSENT = failure(404, "NotFound")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def config(**spec: Any) -> Answer:
    """Returns an AgentConfig as the server answers with it."""
    return Answer(
        body={
            "apiVersion": API_VERSION,
            "kind": "AgentConfig",
            "metadata": {"name": "x", "namespace": "y"},
            "spec": spec,
        }
    )


async def resolve(
    folder: Path, *answers: Answer, namespace: str = "tenant", name: str | None = None
) -> tuple[AgentConfigSpec, list[str]]:
    """Resolves a configuration; returns it and what was asked for, in order."""
    async with serving(folder) as (server, cluster):
        server.will(*answers)
        try:
            result = await configs.resolve(cluster, "outhaul-system", namespace, name)
        finally:
            assert not server.left
        return result, [
            request.url.removeprefix("/apis/outhaul.dev/v1alpha1/namespaces/").replace("agentconfigs/", "")
            for request in server.requests
        ]


async def test_the_nearest_layer_counts(tmp_path: Path) -> None:
    """The operator's default is below the namespace's, and that is below the named one, field by field."""
    result, asked = await resolve(
        tmp_path,
        config(image="operator", engine="porter", linger="1h"),
        config(image="namespace", engine="terraform"),
        config(image="named"),
        name="big",
    )
    assert result == AgentConfigSpec(image="named", engine="terraform", linger="1h")
    assert asked == ["outhaul-system/default", "tenant/default", "tenant/big"]


async def test_defaults_need_not_exist(tmp_path: Path) -> None:
    """Without any AgentConfig a run has an empty one."""
    assert (await resolve(tmp_path, ABSENT, ABSENT))[0] == AgentConfigSpec()


async def test_a_named_one_is_waited_for(tmp_path: Path) -> None:
    """An AgentConfig that somebody names is not skipped where it does not exist."""
    with pytest.raises(WaitingError, match="AgentConfig big does not exist in namespace tenant") as caught:
        await resolve(tmp_path, config(image="x"), ABSENT, ABSENT, name="big")
    assert caught.value.reason is Reason.AGENT_CONFIG_NOT_FOUND


async def test_a_named_default_is_waited_for(tmp_path: Path) -> None:
    """Naming `default` asks for it, once."""
    with pytest.raises(WaitingError, match="default does not exist"):
        await resolve(tmp_path, ABSENT, ABSENT, name="default")


async def test_nothing_is_asked_twice(tmp_path: Path) -> None:
    """In the operator's own namespace two layers are one."""
    result, asked = await resolve(tmp_path, config(image="x"), namespace="outhaul-system")
    assert asked == ["outhaul-system/default"]
    assert result.image == "x"


async def test_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A broken AgentConfig needs a person, and is told by its place and its field, without the value."""
    with pytest.raises(StalledError, match=r"AgentConfig tenant/default: spec\.linger") as caught:
        await resolve(tmp_path, ABSENT, config(linger="swordfish"))
    assert caught.value.reason is Reason.INVALID_SPEC
    assert "swordfish" not in str(caught.value)


async def test_a_server_that_is_away_is_no_absence(tmp_path: Path) -> None:
    """A layer is left out only where the server says that it does not exist."""
    with pytest.raises(UnavailableError):
        await resolve(tmp_path, failure(503, "ServiceUnavailable"))


LAYERS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "image": st.sampled_from(["a", "b", ""]),
            "engine": st.sampled_from(["exec", "porter"]),
            "ttlSecondsAfterFinished": st.integers(0, 5),
            "podTemplate": st.sampled_from([{}, {"spec": {"a": 1}}, {"spec": {"b": 2}}]),
        },
    ),
    max_size=3,
)


def merged(layers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merges layers, as JSON."""
    return configs.merged([AgentConfigSpec.model_validate(layer) for layer in layers]).to_json()


@given(LAYERS)
def test_each_field_is_the_last_that_is_given(layers: list[dict[str, Any]]) -> None:
    """A field comes whole from the nearest layer that has it, though it be 0 or empty there."""
    expected: dict[str, Any] = {}
    for layer in layers:
        expected.update(layer)
    assert merged(layers) == expected


@given(LAYERS, LAYERS)
def test_layers_can_be_merged_in_any_grouping(lower: list[dict[str, Any]], upper: list[dict[str, Any]]) -> None:
    """Merging is one order of layers, whatever is merged first."""
    assert merged([merged(lower), merged(upper)]) == merged([*lower, *upper])
