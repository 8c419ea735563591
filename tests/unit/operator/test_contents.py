"""What the latest Secret holds: keys, templates, and the entries of a service binding."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_api.installation import Outputs
from outhaul_api.vocabulary import OutputType, Reason
from outhaul_operator import contents
from outhaul_operator.agentoutputs import Output
from outhaul_operator.templates import Renderer
from outhaul_operator.verdicts import StalledError


def output(name: str, value: object = "", *, data: bytes | None = None, type_: OutputType | None = None) -> Output:
    """An output with this value, or with these bytes as this type."""
    kinds = {str: "string", bool: "boolean", dict: "object", list: "array", type(None): "null"}
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    kind = type_ or OutputType(kinds.get(type(value), "number"))
    return Output(name, kind, sensitive=True, data=text.encode() if data is None else data)


def made(outputs: Sequence[Output], wanted: Outputs) -> dict[str, bytes]:
    """What the latest Secret holds of these outputs."""
    return asyncio.run(contents.contents(Renderer(), "tenant", outputs, wanted))


def rendered(template: str, *outputs: Output) -> str:
    """What a template makes of these outputs."""
    return made(outputs, Outputs(template={"made": template}))["made"].decode()


def refused(outputs: list[Output], **wanted: object) -> str:
    """The message of the error that these outputs, wanted like this, are."""
    with pytest.raises(StalledError) as caught:
        made(outputs, Outputs.model_validate(wanted))
    assert caught.value.reason is Reason.TEMPLATE_FAILED
    return caught.value.message


def test_values_are_as_they_came() -> None:
    """Without any wish the data is each output's bytes under its key."""
    given_ = [output("b", data=b"\0\xff", type_=OutputType.BYTES), output("a b", "x\r\n")]
    assert made(given_, Outputs()) == {"b": b"\0\xff", "enc_a_20b": b"x\r\n"}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("db_host", "DB_HOST"),
        ("db-host.name", "DB_HOST_NAME"),
        ("dbHost", "DBHOST"),
        ("2nd", "_2ND"),
        ("größe", "GR__E"),
        ("", "_"),
        ("-", "_"),
        ("x" * 300, "X" * 253),
        ("9" * 300, "_" + "9" * 252),
    ],
)
def test_variable_names(name: str, key: str) -> None:
    """A name becomes UPPER_SNAKE, whatever it is."""
    assert contents.env_key(name) == key


@given(st.text())
def test_every_variable_name_is_one(name: str) -> None:
    """What any name becomes can be the name of a variable, and a Secret's key."""
    key = contents.env_key(name)
    assert key.isidentifier()
    assert key.isascii()
    assert len(key) <= 253


def test_one_variable_of_two_outputs() -> None:
    """Two outputs of one key are an error that names both and shows no value."""
    message = refused([output("a-b", "secret"), output("a_b", "secret")], keyStyle="Env")
    assert "'a-b' and 'a_b'" in message
    assert "'A_B'" in message
    assert "secret" not in message


def test_binding_entries() -> None:
    """The entries of a service binding stand beside the outputs, and win over outputs of their names."""
    wanted = Outputs.model_validate({"binding": {"type": "mysql"}})
    assert made([output("host", "h"), output("type", "t")], wanted) == {"host": b"h", "type": b"mysql"}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ user }}:{{ password|urlencode }}@{{ outputs['db-host'] }}", "shop:a%26b%20c@db"),
        ("{{ port }}", "1.0"),
        ("{{ flag }} {{ none }}", "true null"),
        ("{{ config }}", '{"a":[1,true,null,"ü"],"b":"1e400"}'),
        ("{{ config.a[3] }}", "ü"),
        ("{{ absent|default('d') }}", "d"),
        ("{% if absent is defined %}x{% else %}y{% endif %}", "y"),
        ("{% for i in range(3) %}{{ i }}{% endfor %}", "012"),
        ("text\n", "text\n"),
        ("<{{ html }}>", "<<b>>"),
    ],
)
def test_templates(template: str, text: str) -> None:
    """Templates see strings and numbers as they were written, everything else as JSON, and escape only when asked."""
    values = [
        output("user", "shop"),
        output("password", "a&b c"),
        output("db-host", "db"),
        output("port", data=b"1.0", type_=OutputType.NUMBER),
        output("flag", value=True),
        output("none", None),
        output("config", data='{"a":[1,true,null,"ü"],"b":1e400}'.encode(), type_=OutputType.OBJECT),
        output("html", "<b>"),
    ]
    assert rendered(template, *values) == text


@pytest.mark.parametrize("name", ["name", "source", "self", "outputs", "template", "range", "loop", "true", "a b", ""])
def test_every_name_can_be_used(name: str) -> None:
    """An output of any name can be reached through `outputs`, also where the template library knows the word."""
    assert rendered(f"{{{{ outputs[{json.dumps(name)}] }}}}", output(name, "v")) == "v"


def test_a_missing_output() -> None:
    """What a template misses is named, beside what there is, and no value is shown."""
    message = refused([output("user", "secret")], template={"dsn": "a\n{{ user }}{{ hots }}"})
    assert message == (
        "spec.outputs.template 'dsn': line 2: there is no output hots; there are user; correct the template"
    )


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ config.absent.x }}", "does not exist"),
        ("{{ user", "SyntaxError"),
        ("{{ user|nonsense }}", "UnknownFilter"),
        ("{{ user + 1 }}", "InvalidOperation"),
        ("{% include 'x' %}", "TemplateNotFound"),
        ("{% set x = user %}" + "{% set x = x ~ x %}" * 40 + "{{ x }}", "takes too long or becomes too large"),
        ("{{ user|replace('s', user * 9000)|replace('s', user * 9000) }}", "takes too long or becomes too large"),
        ("{{ ([[1]] * 20000)|sum(start=[]) }}", "UnknownFilter"),
        ("{{ '%0900000000d'|format(1) }}", "takes too long or becomes too large"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes too long"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "InvalidOperation"),
    ],
)
def test_templates_that_cannot_be_rendered(template: str, words: str) -> None:
    """A bad template is an error that names its key and shows no value, however it fails."""
    message = refused([output("user", "secret"), output("config", {"secret": "secret"})], template={"dsn": template})
    assert message.startswith("spec.outputs.template 'dsn': line ")
    assert words in message
    assert "secret" not in message


def test_many_templates_share_what_may_be_used() -> None:
    """What one template may do, ten may do, and a hundred may not: they are rendered one after the other, for all."""
    work = "{% for i in range(9000) %}{% set x = i %}{% endfor %}done"
    few = {f"k{number}": work for number in range(10)}
    assert made([], Outputs(template=few)) == dict.fromkeys(few, b"done")
    message = refused([], template={f"k{number}": work for number in range(100)})
    assert "takes too long or becomes too large" in message


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param("{{ " + "-" * 65_000 + "1 }}", id="depth"),
        pytest.param("{{ [1, 2]|tojson(indent=1000000000) }}", id="memory"),
        pytest.param("{{ [1] * 100000000 }}", id="time"),
    ],
)
def test_a_template_that_ends_its_process(bomb: str) -> None:
    """What ends the process that renders it is an error of that template alone."""
    message = refused([output("user", "secret")], template={"a": "{{ user }}", "b": bomb, "c": "{{ user }}"})
    assert message == "spec.outputs.template 'b': it takes too long or becomes too large; correct the template"
    assert rendered("{{ user }}", output("user", "shop")) == "shop"


def test_a_large_output_can_be_copied() -> None:
    """A template may copy as much as a Secret holds."""
    assert rendered("{{ big }}", output("big", "x" * 2**20)) == "x" * 2**20


def test_templates_see_no_bytes() -> None:
    """Binary outputs cannot be used in text, and a template that uses one says that there is none."""
    assert "there is no output blob; there are none" in refused(
        [output("blob", data=b"\0", type_=OutputType.BYTES)], template={"dsn": "{{ blob }}"}
    )


@pytest.mark.parametrize(
    ("type_", "data"), [("string", b"\xff"), ("object", b"{"), ("array", b"[" * 100_000 + b"]" * 100_000)]
)
def test_an_agent_is_not_believed(type_: str, data: bytes) -> None:
    """What is not of its type, or nested without end, is stored as it came, and no template can use it."""
    bad = output("bad", data=data, type_=OutputType(type_))
    assert made([bad], Outputs(template={"made": "x"})) == {"bad": data, "made": b"x"}
    assert "there is no output bad" in refused([bad], template={"made": "{{ bad }}"})


BOMB = output("bomb", data=b"[" + b"{}," * 700_000 + b"{}]", type_=OutputType.ARRAY)


def test_only_what_a_template_names_is_taken_apart() -> None:
    """JSON that would take many times its room in memory is left alone unless a template asks for it."""
    assert rendered("{{ user }}", output("user", "shop"), BOMB) == "shop"
    assert made([BOMB], Outputs()) == {"bomb": BOMB.data}


@pytest.mark.parametrize("template", ["{{ bomb|length }}", "{% for name in outputs %}{{ name }}{% endfor %}"])
def test_templates_can_use_so_much_and_no_more(template: str) -> None:
    """What templates use is bounded, and the message says what to do."""
    assert refused([output("user", "shop"), BOMB], template={"dsn": template}).startswith(
        "spec.outputs.template: the outputs that the templates use have 2,1"
    )


def test_names_in_messages_are_fit_for_them() -> None:
    """However many outputs there are and whatever their names, a message stays short and printable."""
    message = refused([output(f"x\x1b[2J{number:0>900}") for number in range(50)], template={"dsn": "{{ missing }}"})
    assert message.isprintable()
    assert len(message) < 1200
    assert message.endswith("correct the template")


def test_a_key_that_no_secret_may_have() -> None:
    """A template's key that Kubernetes would refuse is refused before."""
    assert "'a b' is no key" in refused([], template={"a b": "x"})


def test_the_digest_tells_what_counts() -> None:
    """Run, name, style, template and binding make the digest; what does not change the Secret does not."""
    digests = {
        contents.publication_digest(run, name, Outputs.model_validate(wanted))
        for run, name, wanted in [
            ("run", "name", {}),
            ("other", "name", {}),
            ("run", "other", {}),
            ("run", "name", {"keyStyle": "Env"}),
            ("run", "name", {"template": {"a": "b"}}),
            ("run", "name", {"binding": {"type": "a"}}),
        ]
    }
    assert len(digests) == 6
    assert contents.publication_digest("run", "name", Outputs(history_limit=9)) in digests
