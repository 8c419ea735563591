"""Merging a pod template as a strategic merge patch does."""

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from outhaul_operator.merge import merge_template

POD: dict[str, Any] = {
    "metadata": {"name": "p", "labels": {"ours": "1"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "agent",
                "image": "ours",
                "env": [{"name": "HOME", "value": "/home"}],
                "command": ["outhaul-agent"],
                "volumeMounts": [{"name": "work", "mountPath": "/work"}],
            }
        ],
        "volumes": [{"name": "work", "emptyDir": {}}],
        "tolerations": [{"key": "a"}],
    },
}


def merged(template: dict[str, Any]) -> dict[str, Any]:
    """Returns the pod with a template over it; the pod itself and the template stay as they are."""
    base, over = copy.deepcopy(POD), copy.deepcopy(template)
    result = merge_template(base, over)
    assert base == POD
    assert over == template
    return result


def container(template: dict[str, Any]) -> dict[str, Any]:
    """Returns the agent's container with a container of the template over it."""
    (only,) = merged({"spec": {"containers": [{"name": "agent", **template}]}})["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_fields_are_merged_deeply() -> None:
    """What the template does not name stays."""
    result = merged({"metadata": {"labels": {"theirs": "2"}}, "spec": {"nodeSelector": {"disk": "ssd"}}})
    assert result["metadata"] == {"name": "p", "labels": {"ours": "1", "theirs": "2"}}
    assert result["spec"] == {**POD["spec"], "nodeSelector": {"disk": "ssd"}}


def test_a_container_is_merged_by_its_name() -> None:
    """The template's `agent` changes ours, and every other name is one more container."""
    result = merged({"spec": {"containers": [{"name": "proxy", "image": "theirs"}, {"name": "agent", "tty": True}]}})
    ours, theirs = result["spec"]["containers"]
    assert ours == {**POD["spec"]["containers"][0], "tty": True}
    assert theirs == {"name": "proxy", "image": "theirs"}


@pytest.mark.parametrize(
    ("field", "item", "expected"),
    [
        ("env", {"name": "HOME", "value": "/x"}, [{"name": "HOME", "value": "/x"}]),
        ("env", {"name": "A", "value": "b"}, [{"name": "HOME", "value": "/home"}, {"name": "A", "value": "b"}]),
        (
            "env",
            {"name": "HOME", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            [{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        ),
        (
            "volumeMounts",
            {"name": "other", "mountPath": "/work"},
            [{"name": "other", "mountPath": "/work"}],
        ),
        (
            "volumeMounts",
            {"name": "work", "mountPath": "/again"},
            [{"name": "work", "mountPath": "/work"}, {"name": "work", "mountPath": "/again"}],
        ),
    ],
)
def test_lists_are_merged_by_their_key(field: str, item: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    """Variables are told apart by name and mounts by path: the same one is changed, another one is added."""
    assert container({field: [item]})[field] == expected


def test_a_volume_can_become_another() -> None:
    """A volume has one source: one of our name takes ours' place, and ours becomes a claim."""
    volume = {"name": "work", "persistentVolumeClaim": {"claimName": "c"}}
    result = merged({"spec": {"volumes": [volume]}})
    assert result["spec"]["volumes"] == [{"name": "work", "persistentVolumeClaim": {"claimName": "c"}}]


def test_other_lists_are_replaced() -> None:
    """A list without a merge key is the template's."""
    assert merged({"spec": {"tolerations": [{"key": "b"}]}})["spec"]["tolerations"] == [{"key": "b"}]
    assert container({"command": ["x"]})["command"] == ["x"]


@pytest.mark.parametrize("missing", ["tolerations", "notThere"])
def test_null_removes(missing: str) -> None:
    """Null takes a field away, and is fine where there is none."""
    assert missing not in merged({"spec": {missing: None}})["spec"]


@pytest.mark.parametrize("template", [{}, {"metadata": None, "spec": None}, {"spec": {}}, {"status": {"phase": "x"}}])
def test_nothing_changes_nothing(template: dict[str, Any]) -> None:
    """An empty template leaves the pod as it is, and a part that pods of ours do not have is left out."""
    assert merged(template) == POD


@pytest.mark.parametrize("items", [["agent"], [None], [7], [{}], "agent", {"name": "agent"}])
def test_nonsense_is_left_to_the_api_server(items: object) -> None:
    """A list that is none, or whose items are none, is handed on: the server's refusal says what is wrong."""
    result = merged({"spec": {"containers": items}})["spec"]["containers"]
    assert result == (items if not isinstance(items, list) else [*POD["spec"]["containers"], *items])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "env", "containers", "volumes", "ports", "image"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@example({"spec": {"containers": [None, {"name": "agent"}]}})
@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON))
def test_any_template_can_be_merged(template: dict[str, Any]) -> None:
    """No template, whatever it is, stops the operator; merging it again changes nothing that has a key."""
    merged(template)


@given(st.dictionaries(st.sampled_from("abc"), st.integers() | st.none(), max_size=3))
def test_merging_twice_is_merging_once(fields: dict[str, int | None]) -> None:
    """A template over its own result changes nothing more."""
    template = {"spec": {**fields, "containers": [{"name": "agent", **fields}]}}
    once = merge_template(POD, template)
    assert merge_template(once, template) == once


def test_many_items_are_merged_in_no_time() -> None:
    """As many variables as an object can hold take seconds: the operator merges for everybody, one after the other."""
    many = [{"name": f"V{number}"} for number in range(100_000)]
    merged = merge_template(POD, {"spec": {"containers": [{"name": "agent", "env": many}]}})
    assert len(merged["spec"]["containers"][0]["env"]) == len(many) + 1
