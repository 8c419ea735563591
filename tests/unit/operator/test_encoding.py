"""Keys, the split over several Secrets, and values in JSON: for arbitrary outputs."""

import base64
import hashlib
import json
import re
import string
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from outhaul_api.installationoutput import InstallationOutput, InstallationOutputSpec, InstallationOutputStatus
from outhaul_api.vocabulary import OutputPhase, OutputType
from outhaul_operator import encoding
from outhaul_operator.agentoutputs import Output

AWKWARD_NAMES = [
    "",
    ".",
    "..",
    "..a",
    "a.b",
    "a/b",
    "a b",
    "a_b",
    "enc_",
    "enc_a",
    "enc_a_2Fb",
    "enc__5F",
    "sha256_",
    "sha256_" + "0" * 64,
    "a" * 253,
    "a" * 254,
    "a" * 300,
    "/" * 83,
    "/" * 84,
    "ä",
    "_C3_A4",
    "\0",
    "\u0663",
    "\U0001d518" * 300,
]
NAMES = (
    st.sampled_from(AWKWARD_NAMES)
    | st.text()
    | st.text("ab./ _-AF25", max_size=12)
    | st.builds("{}{}".format, st.sampled_from(["enc_", "sha256_", "enc_enc_", "."]), st.text(max_size=8))
    | st.integers(240, 320).map(lambda length: "n" * length)
)


def output(name: str = "name", data: bytes = b"value", type_: str = "string", *, sensitive: bool = False) -> Output:
    """Returns an output as an agent's answer becomes it."""
    return Output(name, OutputType(type_), sensitive, data)


# -- keys


def is_key(key: str) -> bool:
    """Tells whether Kubernetes takes a key (apimachinery, validation.IsConfigMapKey)."""
    return bool(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key)) and key != "." and not key.startswith("..")


@given(NAMES)
def test_every_name_gets_a_key_that_kubernetes_takes(name: str) -> None:
    """Whatever an output is called, its key is valid."""
    assert is_key(encoding.key_for(name))


@given(NAMES)
def test_a_key_tells_its_name(name: str) -> None:
    """An encoding can be undone, but for the digest of a name that is too long."""
    key = encoding.key_for(name)
    assert encoding.name_of(key) == (None if key.startswith("sha256_") else name)


@given(st.text(string.ascii_letters + string.digits + "-._", min_size=1, max_size=253))
def test_a_valid_name_is_its_own_key(name: str) -> None:
    """A name that Kubernetes takes is left as it is, unless it looks like an encoding."""
    assume(is_key(name) and not name.startswith(("enc_", "sha256_")))
    assert encoding.key_for(name) == name


@given(st.lists(NAMES, unique=True, max_size=30))
@example(AWKWARD_NAMES)
@example(["a/b", "enc_a_2Fb", "enc_enc_5Fa_5F2Fb"])
def test_no_two_names_share_a_key(names: list[str]) -> None:
    """Different names have different keys."""
    assert len({encoding.key_for(name) for name in names}) == len(names)


def test_names_are_digested_only_where_they_must_be() -> None:
    """A name whose encoding is just short enough is encoded; one more byte and it is digested."""
    assert encoding.key_for("/" * 83) == "enc_" + "_2F" * 83
    assert encoding.key_for("/" * 84) == "sha256_" + hashlib.sha256(b"/" * 84).hexdigest()


@given(st.lists(NAMES, unique=True, max_size=5))
def test_a_name_cannot_be_made_to_look_like_another_names_digest(names: list[str]) -> None:
    """The key of a long name is not the key of any name that spells that key."""
    for name in [*names, "x" * 300]:
        key = encoding.key_for(name)
        assert key == name or encoding.key_for(key) != key or not key.startswith(("enc_", "sha256_"))


# -- the split

MIB = 1024 * 1024


@st.composite
def many_outputs(draw: st.DrawFn) -> list[Output]:
    """Outputs of all sizes, around what fits and what does not."""
    sizes = st.sampled_from([0, 1, MIB // 3, MIB // 2, MIB // 2 + 1, MIB - 1, MIB, MIB + 1]) | st.integers(0, MIB)
    names = draw(st.lists(NAMES, unique=True, max_size=12))
    return [output(name, bytes(draw(sizes))) for name in names]


def shard_size(shard: dict[str, bytes]) -> int:
    """Returns what the API server adds up."""
    return sum(len(value) for value in shard.values())


@given(many_outputs())
def test_every_output_is_in_one_place(outputs: list[Output]) -> None:
    """Each output is in exactly one Secret with its own bytes, or too large for any."""
    shards, too_large = encoding.split(outputs)
    stored = [(key, value) for shard in shards for key, value in shard.items()]
    stored += [(encoding.key_for(one.name), one.data) for one in too_large]
    assert sorted(stored) == sorted((encoding.key_for(one.name), one.data) for one in outputs)


@given(many_outputs())
def test_no_secret_is_larger_than_the_api_server_takes(outputs: list[Output]) -> None:
    """No Secret is beyond the limit, and only what is beyond it alone is left out."""
    shards, too_large = encoding.split(outputs)
    assert all(shard_size(shard) <= encoding.MAX_SECRET_BYTES for shard in shards)
    assert {one.name for one in too_large} == {one.name for one in outputs if len(one.data) > MIB}


@given(many_outputs(), st.randoms())
def test_the_order_of_outputs_does_not_matter(outputs: list[Output], random: Any) -> None:
    """Equal outputs are split equally: a repeated step writes the same Secrets."""
    shuffled = list(outputs)
    random.shuffle(shuffled)
    assert encoding.split(shuffled) == encoding.split(outputs)


@given(many_outputs())
def test_as_few_secrets_as_first_fit_finds(outputs: list[Output]) -> None:
    """There are as many Secrets as first-fit by falling size needs, and one at least."""
    free: list[int] = []
    for size in sorted((len(one.data) for one in outputs if len(one.data) <= MIB), reverse=True):
        place = next((index for index, left in enumerate(free) if left >= size), None)
        if place is None:
            free.append(MIB - size)
        else:
            free[place] -= size
    assert len(encoding.split(outputs)[0]) == max(1, len(free))


def test_a_secret_has_no_more_keys_than_its_request_can_carry() -> None:
    """Many long names with nothing in them are spread too: keys count against the size of a request."""
    outputs = [output(f"{index:0>250}", b"") for index in range(2500)]
    shards, too_large = encoding.split(outputs)
    assert not too_large
    assert len(shards) == 3
    assert all(sum(len(key) for key in shard) <= 256 * 1024 for shard in shards)


# -- values in JSON


def as_go_writes(value: Any) -> str:
    """Returns a value as an API server in Go writes it after reading it (int64, else float64)."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, int):
        assert -(2**63) <= value < 2**63
        return str(value)
    if isinstance(value, float):
        if value and not 1e-6 <= abs(value) < 1e21:
            return re.sub(r"e([-+])0?", r"e\1", repr(value))
        return f"{Decimal(repr(value)):f}".removesuffix(".0")
    if isinstance(value, list):
        return "[" + ",".join(map(as_go_writes, value)) + "]"
    assert isinstance(value, dict)
    return "{" + ",".join(f"{json.dumps(key)}:{as_go_writes(one)}" for key, one in value.items()) + "}"


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][-+]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(
        [
            "0",
            "-0",
            "1.0",
            "0.1",
            "-0.0",
            "1e400",
            "1E5",
            "1e5",
            "1e-7",
            "0.30000000000000004",
            "0.000001",
            "1e21",
            str(2**53 + 1),
            str(2**63 - 1),
            str(2**63),
            str(-(2**63)),
            str(-(2**63) - 1),
            "100000000000000000000.5",
        ]
    ),
)
TEXTS = st.recursive(
    NUMBERS | st.sampled_from(["null", "true", "false", '""', '"a"', "[]", "{}"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: f"[{','.join(parts)}]"),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=4).map(
            lambda members: "{" + ",".join(f'"{key}":{value}' for key, value in members.items()) + "}"
        ),
    ),
    max_leaves=10,
)


def type_of(text: str) -> str:
    """Returns an output's type for its JSON."""
    return {"[": "array", "{": "object", "n": "null", "t": "boolean", "f": "boolean", '"': "string"}.get(
        text[0], "number"
    )


@given(TEXTS.filter(lambda text: text[0] != '"'))
def test_a_value_that_is_shown_is_exact(text: str) -> None:
    """What the record shows is, after the API server has read and written it, what the command wrote."""
    shown = encoding.inline(output(data=text.encode(), type_=type_of(text)))
    if shown is not None:
        assert json.dumps(shown.value, separators=(",", ":")) == text
        assert as_go_writes(shown.value) == text


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "7",
        "-7",
        "0.1",
        "-0.5",
        "1234.5678",
        "9007199254740993",
        "9223372036854775807",
        "-9223372036854775808",
        "null",
        "true",
        "[]",
        "{}",
        '[1,"a",null,{"b":0.25}]',
        '{"z":1,"a":2}',
        '"',
        "0.30000000000000004",
    ],
)
def test_ordinary_values_are_shown(text: str) -> None:
    """Numbers that JSON in Kubernetes keeps exact are shown, and so is everything that is no number."""
    kind = "string" if text == '"' else type_of(text)
    assert encoding.inline(output(data=text.encode(), type_=kind)) is not None


@pytest.mark.parametrize(
    "number",
    [
        "9223372036854775808",
        "-9223372036854775809",
        "1e400",
        "-1e400",
        "1.0",
        "-0",
        "-0.0",
        "1E5",
        "1e5",
        "0.10",
        "1e-400",
        "0.1000000000000000055",
        "10000000000000000000000.5",
        "NaN",
        "Infinity",
        "-Infinity",
    ],
)
@pytest.mark.parametrize("form", ["{}", "[{}]", '{{"a":{{"b":[0,{}]}}}}'])
def test_numbers_that_would_change_are_not_shown(number: str, form: str) -> None:
    """A number that Kubernetes would write otherwise than it came is only in the Secret, wherever it stands."""
    text = form.format(number)
    assert encoding.inline(output(data=text.encode(), type_=type_of(text))) is None


@given(st.text(max_size=200))
def test_a_string_is_shown_as_it_is(text: str) -> None:
    """A string's value is its text, whatever that looks like."""
    shown = encoding.inline(output(data=text.encode(), type_="string"))
    assert shown == encoding.Inline(text, len(text.encode()))


@given(TEXTS, st.sampled_from(OutputType))
def test_nothing_sensitive_is_shown(text: str, type_: OutputType) -> None:
    """A sensitive value is never in a record, of whatever type."""
    assert encoding.inline(output(data=text.encode(), type_=type_, sensitive=True)) is None


def test_bytes_are_not_shown() -> None:
    """Binary values are only in the Secret."""
    assert encoding.inline(output(data=b"text", type_="bytes")) is None


def test_a_long_value_is_not_shown() -> None:
    """A value of the limit is shown, one byte more is not."""
    assert encoding.inline(output(data=b"a" * encoding.MAX_INLINE_BYTES)) is not None
    assert encoding.inline(output(data=b"a" * (encoding.MAX_INLINE_BYTES + 1))) is None


@pytest.mark.parametrize(
    ("data", "type_"),
    [
        (b"\xff\xfe", "string"),
        (b"\xff", "object"),
        (b"", "number"),
        (b"{", "object"),
        (b"{} {}", "object"),
        (b"[" * 2000, "array"),
        (b"[" * 600 + b"]" * 600, "array"),
        (rb'["\ud800"]', "array"),
        (rb'{"\udfff":1}', "object"),
        (b'{"a":1,"a":2}', "object"),
    ],
)
def test_what_is_not_what_it_says_is_not_shown(data: bytes, type_: str) -> None:
    """An agent is not believed: broken JSON, broken text, a key twice, or nesting that nobody writes is not shown."""
    assert encoding.inline(output(data=data, type_=type_)) is None


@given(
    st.recursive(st.none(), lambda inner: st.lists(inner, min_size=1, max_size=1), max_leaves=2), st.integers(0, 300)
)
def test_whatever_is_shown_can_be_written(inner: Any, depth: int) -> None:
    """A record with a value that is shown becomes JSON, however deep the value is."""
    text = "[" * depth + json.dumps(inner) + "]" * depth
    encoded = encoding.encode([output(data=text.encode(), type_="array")], ["s"], fingerprint)
    record = InstallationOutput(
        spec=InstallationOutputSpec(action="a"),
        status=InstallationOutputStatus(phase=OutputPhase.CURRENT, outputs=encoded.outputs),
    )
    json.dumps(record.to_json())


# -- all of it


def fingerprint(one: Output) -> str:
    """A digest that nobody could mistake for the value's own."""
    return hashlib.sha256(b"key" + one.data).hexdigest()


SECRET_NAMES = [f"run-outputs-{index}" for index in range(20)]


@given(many_outputs())
@settings(max_examples=50)
def test_a_record_says_where_each_value_is(outputs: list[Output]) -> None:
    """Every output that is stored can be found by its record's reference, and the record is ordered by name."""
    encoded = encoding.encode(outputs, SECRET_NAMES, fingerprint)
    secrets = dict(encoded.secrets)
    by_name = {one.name: one for one in outputs}
    assert [one.name for one in encoded.outputs] == sorted(by_name, key=str.encode)
    for record in encoded.outputs:
        data = by_name[record.name].data
        assert record.size == len(data)
        assert record.sha256 == hashlib.sha256(data).hexdigest()
        if len(data) > MIB:
            assert record.secret_key_ref is None
        else:
            assert record.secret_key_ref is not None
            assert secrets[record.secret_key_ref.name][record.secret_key_ref.key] == data


def test_a_sensitive_value_has_no_digest() -> None:
    """A weak secret could be guessed from its digest."""
    (record,) = encoding.encode([output(sensitive=True)], SECRET_NAMES, fingerprint).outputs
    assert record.sha256 is None
    assert record.value is None
    assert record.sensitive


def test_all_values_that_are_shown_fit_into_one_record() -> None:
    """The sum of what is shown is limited; the rest is by reference, and a small one after it may be shown again."""
    large = [output(f"{index:03}", b"a" * encoding.MAX_INLINE_BYTES) for index in range(70)]
    encoded = encoding.encode([*large, output("zz", b"")], SECRET_NAMES, fingerprint)
    shown = [one for one in encoded.outputs if one.value is not None]
    assert sum(one.size for one in shown) == encoding.MAX_INLINE_TOTAL_BYTES
    assert shown[-1].name == "zz"
    assert all(one.secret_key_ref is not None for one in encoded.outputs)


def test_no_outputs_are_one_empty_secret() -> None:
    """An application that mounts the Secret of a run without outputs finds an empty one."""
    assert encoding.encode([], SECRET_NAMES, fingerprint).secrets == [("run-outputs-0", {})]


def test_joined_names_are_cut() -> None:
    """The names for `kubectl get` fit their field and do no harm to a terminal, whatever there is."""
    assert encoding.joined_names(["a", "b"]) == "a,b"
    assert encoding.joined_names(["a\x1b[2J", "b\n"]) == "a [2J,b "
    joined = encoding.joined_names(f"{index:0>50}" for index in range(100))
    assert len(joined) == 1024
    assert joined.endswith("…")


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.binary(max_size=50)))
def test_a_secrets_data_is_base64(data: dict[str, bytes]) -> None:
    """Bytes in are bytes out."""
    encoded = encoding.encoded_data(data)
    assert {key: base64.b64decode(value) for key, value in encoded.items()} == data
