"""Outputs on their way from a run's files to Secrets and records: names, types, sizes, declarations."""

import hashlib
import json
import re
from typing import Any

import pytest
from cluster.objects import Json, Objects

KIB = 1024
MIB = 1024 * KIB
KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
LONG = f"{'x' * 150}/{'y' * 149}"
"""A name of 300 characters: no file has one, but a path in a directory of outputs may."""
ODD = {
    "plain": "plain",
    "a/b": "enc_a_2Fb",
    "a b": "enc_a_20b",
    "a.b": "a.b",
    "..": None,
    "..hidden": "enc_..hidden",
    "enc_a_2Fb": "enc_enc_5Fa_5F2Fb",
    "größe": "enc_gr_C3_B6_C3_9Fe",
    "line\nbreak": "enc_line_0Abreak",
    LONG: f"sha256_{hashlib.sha256(LONG.encode()).hexdigest()}",
}
"""Names of files, and the keys that they must get; None: no file can have the name."""


def python(program: str, **outputs: Any) -> dict[str, Any]:
    """The spec of an Installation that runs Python; `out` is the directory for outputs."""
    start = "import json, os, pathlib; out = pathlib.Path(os.environ['OUTHAUL_OUTPUTS'])\n"
    command = {"name": "write", "command": ["python", "-c", start + program]}
    return {"engine": "exec", "commands": {"install": [command]}, "outputs": outputs}


def text(value: str, format_: str = "json") -> dict[str, Any]:
    """The spec of an Installation whose only source of outputs prints this text."""
    source = {"command": {"command": ["printf", "%s", value], "format": format_}}
    return {
        "engine": "exec",
        "commands": {"install": [{"name": "nothing", "command": ["true"]}]},
        "outputs": {"from": [source]},
    }


def outputs_of(objects: Objects, installation: str) -> dict[str, Json]:
    """The outputs of an Installation's newest successful run, as its record has them, by name."""
    run = objects.ready(installation)["status"]["lastSucceeded"]["name"]
    outputs: list[Json] = objects.get("InstallationOutput", run)["status"]["outputs"]
    return {one["name"]: one for one in outputs}


def failure(objects: Objects, installation: str) -> Json:
    """The status of an Installation's first run, which has failed."""
    status: Json = objects.ran(installation, 1)["status"]
    assert status["phase"] == "Failed"
    return status


# -- names


@pytest.fixture(scope="module")
def odd(shared_objects: Objects) -> dict[str, Json]:
    """The recorded outputs of an Installation whose files have odd names; each holds its own name."""
    names = json.dumps([name for name, key in ODD.items() if key is not None])
    program = f"for name in {names}:\n path = out / name; path.parent.mkdir(exist_ok=True); path.write_text(name)"
    shared_objects.install("odd", **python(program))
    return outputs_of(shared_objects, "odd")


def test_each_odd_name_has_its_key(odd: dict[str, Json]) -> None:
    """A name that Kubernetes takes as a key is the key; every other one gets an encoding, which the record tells."""
    wanted = {name: key for name, key in ODD.items() if key is not None}
    assert {name: one["secretKeyRef"]["key"] for name, one in odd.items()} == wanted
    assert all(KEY.fullmatch(key) for key in wanted.values())


def test_each_odd_name_is_where_the_record_says(shared_objects: Objects, odd: dict[str, Json]) -> None:
    """Under its recorded key an output has its own value, in the run's Secret and in the latest."""
    (place,) = {one["secretKeyRef"]["name"] for one in odd.values()}
    wanted = {one["secretKeyRef"]["key"]: name.encode() for name, one in odd.items()}
    assert shared_objects.secret(place) == wanted
    assert shared_objects.secret("odd-outputs") == wanted


# -- sizes


def contents(index: int) -> bytes:
    """What the large test's outputs hold: text that differs from each to each."""
    return f"{index:08}".encode() * (32 * KIB)


@pytest.fixture(scope="module")
def large(shared_objects: Objects) -> dict[str, Json]:
    """The recorded outputs of the first run of an Installation with 40 outputs of 256 KiB each: 10 MiB."""
    program = f"for n in range(40): (out / f'part{{n:02}}').write_bytes(f'{{n:08}}'.encode() * {32 * KIB})"
    shared_objects.install("large", **python(program))
    return outputs_of(shared_objects, "large")


def places(run: str, count: int) -> list[str]:
    """The names of the Secrets that a run's outputs fill."""
    return [f"{run}-outputs", *(f"{run}-outputs-{index}" for index in range(1, count))]


def test_ten_mebibytes_fill_as_few_secrets_as_can_be(shared_objects: Objects, large: dict[str, Json]) -> None:
    """10 MiB of outputs are in ten full, immutable Secrets of the run, and the record says which is where."""
    run = shared_objects.runs("large")[0]["metadata"]["name"]
    held: dict[str, bytes] = {}
    for place in places(run, 10):
        secret = shared_objects.get("Secret", place)
        assert secret["immutable"] is True
        here = shared_objects.secret(place)
        assert sum(map(len, here.values())) == MIB
        assert all(large[name]["secretKeyRef"]["name"] == place for name in here)
        held |= here
    assert shared_objects.find("Secret", f"{run}-outputs-10") is None
    assert held == {f"part{index:02}": contents(index) for index in range(40)}


def test_the_latest_secret_is_spread_as_the_run_s(shared_objects: Objects, large: dict[str, Json]) -> None:
    """The latest outputs beyond 1 MiB are spread like the run's, and the first Secret says over how many."""
    run = shared_objects.ready("large")["status"]["action"]["name"]
    latest = places("large", 10)
    for mine, theirs in zip(latest, places(run, 10), strict=True):
        assert shared_objects.secret(mine) == shared_objects.secret(theirs)
    assert shared_objects.get("Secret", latest[0])["metadata"]["annotations"]["outhaul.dev/parts"] == "10"


def test_equal_outputs_are_spread_alike(shared_objects: Objects, large: dict[str, Json]) -> None:
    """Another run with the same outputs puts each where it was, and leaves all parts of the latest alone."""
    before = {name: shared_objects.get("Secret", name)["metadata"]["resourceVersion"] for name in places("large", 10)}
    shared_objects.annotate("large", {"outhaul.dev/retry": "the same"})
    shared_objects.ran("large", 2)
    again = outputs_of(shared_objects, "large")

    def spread(outputs: dict[str, Json]) -> dict[str, str]:
        return {name: one["secretKeyRef"]["name"].partition("-outputs")[2] for name, one in outputs.items()}

    assert spread(again) == spread(large)
    after = {name: shared_objects.get("Secret", name)["metadata"]["resourceVersion"] for name in places("large", 10)}
    assert after == before


# -- values in the record


@pytest.fixture(scope="module")
def open_values(shared_objects: Objects) -> dict[str, Json]:
    """The recorded outputs of an Installation with 80 texts of 4,096 bytes that are no secrets, and one of 4,097."""
    program = "one = lambda name, size: dict(name=name, type='string', sensitive=False, value='v' * size)\n"
    program += "all = [one(f'text{n:02}', 4096) for n in range(80)] + [one('a-long-one', 4097), one('z-short', 0)]\n"
    program += "pathlib.Path('outputs.json').write_text(json.dumps(all))"
    shared_objects.install("open", **python(program, **{"from": [{"manifest": {"path": "outputs.json"}}]}))
    return outputs_of(shared_objects, "open")


def test_a_value_beyond_the_limit_is_a_reference(open_values: dict[str, Json]) -> None:
    """A value that is no secret is in the record up to 4,096 bytes; a longer one only by its reference and digest."""
    assert open_values["text00"]["value"] == "v" * 4096
    assert "value" not in open_values["a-long-one"]
    assert open_values["a-long-one"]["sha256"] == hashlib.sha256(b"v" * 4097).hexdigest()
    assert open_values["a-long-one"]["secretKeyRef"]["key"] == "a-long-one"


def test_values_beyond_the_limit_in_sum_are_references(open_values: dict[str, Json]) -> None:
    """Values together take at most 256 KiB of a record, the first by name; what still fits after them is shown."""
    shown = [name for name, one in open_values.items() if "value" in one]
    assert shown == [*(f"text{index:02}" for index in range(64)), "z-short"]
    assert all("secretKeyRef" in one for one in open_values.values())


def test_exactness_comes_before_readability(objects: Objects) -> None:
    """A number that JSON in Kubernetes would change is not in the record, and as it was written in the Secret."""
    values = {"huge": "9223372036854775808", "wide": "1e400", "point": "1.0", "tenth": "0.1", "small": "-7"}
    entries = ", ".join(
        f'{{"name": "{name}", "type": "number", "sensitive": false, "value": {value}}}'
        for name, value in values.items()
    )
    program = f"pathlib.Path('outputs.json').write_text('[{entries}]')"
    objects.install("numbers", **python(program, **{"from": [{"manifest": {"path": "outputs.json"}}]}))
    outputs = outputs_of(objects, "numbers")
    assert {name: one["value"] for name, one in outputs.items() if "value" in one} == {"tenth": 0.1, "small": -7}
    assert objects.secret("numbers-outputs") == {name: value.encode() for name, value in values.items()}


# -- declarations


def test_a_declared_output_of_another_type(objects: Objects) -> None:
    """An output of another type than declared fails the run; the message names it and both types, not the value."""
    objects.install("service", **text('{"port": "hunter2", "host": "db"}'))
    objects.ready("service")
    objects.respec("service", outputs={"declare": [{"name": "port", "type": "number"}]})
    status = objects.ran("service", 2)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "BadOutput")
    assert "output 'port'" in status["message"]
    assert "is declared as number, but it is of type string" in status["message"]
    assert "hunter2" not in json.dumps(status)
    assert objects.secret("service-outputs") == {"port": b"hunter2", "host": b"db"}


def test_a_required_output_that_nobody_brings(objects: Objects) -> None:
    """A declared output that is required and missing fails the run, with its name and where it was looked for."""
    spec = text('{"host": "db"}')
    spec["outputs"]["declare"] = [{"name": "port", "required": True}]
    objects.install("service", **spec)
    message = failure(objects, "service")["message"]
    assert "required output 'port' is missing" in message
    assert "output command 'printf'" in message


def test_declarations_and_patterns(objects: Objects) -> None:
    """A default stands in for what is missing, and names, patterns and declarations say what is no secret."""
    spec = text('{"db_host": "db", "db_password": "hunter2", "region": "eu", "zone": "a", "count": 3}')
    spec["outputs"]["nonSensitive"] = ["db_*", "region"]
    spec["outputs"]["declare"] = [
        {"name": "db_password", "sensitive": True},
        {"name": "count", "type": "number", "sensitive": False},
        {"name": "port", "type": "number", "required": True, "default": 5432},
    ]
    objects.install("service", **spec)
    outputs = outputs_of(objects, "service")
    assert {name: one.get("value") for name, one in outputs.items()} == {
        "db_host": "db",
        "region": "eu",
        "count": 3,
        "port": 5432,
        "db_password": None,
        "zone": None,
    }
    assert {name for name, one in outputs.items() if one["sensitive"]} == {"db_password", "zone"}
    assert objects.secret("service-outputs")["port"] == b"5432"


@pytest.mark.parametrize("count", [10_000, 12_000])
def test_more_outputs_than_one_record_holds(count: int, objects: Objects) -> None:
    """A run whose outputs no record can hold has failed and says so, and can be deleted like any other."""
    program = f"import sys; json.dump({{f'output-{{i}}': i for i in range({count})}}, sys.stdout)"
    source = {"command": {"command": ["python", "-c", f"import json; {program}"], "format": "json"}}
    objects.install("many", **python("pass", **{"from": [source]}))
    # Each is fetched by a request of its own.
    run = objects.ran("many", 1, timeout=240)
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Failed", "OutputTooLarge")
    assert "output fewer, or give them shorter names" in run["status"]["message"]
    objects.delete("Installation", "many")
    objects.gone("Installation", "many")
