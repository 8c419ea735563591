"""When an authority is exchanged, and how long a former one is kept."""

import dataclasses
import datetime as dt
from typing import Any

import pytest
from outhaul_operator import keyring, trust
from outhaul_operator.keyring import Keyring, Wish
from outhaul_operator.trust import Authority, TrustError

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
LIFETIME = 900 * DAY
KEY = b"k" * 32

ROOT = trust.create_authority(NOW, LIFETIME)
OTHER = trust.create_authority(NOW, LIFETIME)
BROUGHT = trust.create_authority(NOW, LIFETIME)

OURS = Keyring(KEY, ROOT)
COPIED = Keyring(KEY, BROUGHT, source="mine")


def wish(**changes: Any) -> Wish:
    """What is wanted while nothing special is."""
    usual = Wish(lifetime=LIFETIME, needed=dt.timedelta(0), is_asked=False, source=None, brought=None)
    return dataclasses.replace(usual, **changes)


@pytest.mark.parametrize(
    ("known", "wanted", "age", "why"),
    [
        pytest.param(OURS, wish(), 599 * DAY, None, id="young"),
        pytest.param(OURS, wish(), 600 * DAY, "two thirds", id="two thirds of its life are over"),
        pytest.param(OURS, wish(), 5000 * DAY, "two thirds", id="over for long"),
        pytest.param(OURS, wish(lifetime=300 * DAY), 200 * DAY, "two thirds", id="a shorter life is wanted"),
        pytest.param(OURS, wish(lifetime=9000 * DAY), 600 * DAY, "two thirds", id="a longer life is wanted, too late"),
        pytest.param(OURS, wish(needed=300 * DAY), 599 * DAY, None, id="a long run fits"),
        pytest.param(OURS, wish(needed=302 * DAY), 599 * DAY, "a run may take longer", id="a longer run does not fit"),
        pytest.param(OURS, wish(is_asked=True), DAY, "asked for", id="asked for"),
        pytest.param(Keyring(KEY), wish(), DAY, "there was none", id="the first one"),
        pytest.param(COPIED, wish(), DAY, "not to be used any more", id="back from the admin's to our own"),
    ],
)
def test_when_a_root_of_our_own_is_exchanged(known: Keyring, wanted: Wish, age: dt.timedelta, why: str | None) -> None:
    """A root signs for two thirds of its life, unless a person or a run needs another before."""
    found = keyring.successor(known, wanted, NOW + age)
    assert (found is None) == (why is None)
    if found is not None and why is not None:
        assert why in found[1]
        assert found[0] not in known.all


@pytest.mark.parametrize(
    ("known", "brought", "taken"),
    [
        pytest.param(OURS, BROUGHT, True, id="the first time"),
        pytest.param(Keyring(KEY), BROUGHT, True, id="at the first start"),
        pytest.param(COPIED, BROUGHT, False, id="the same"),
        pytest.param(COPIED, OTHER, True, id="renewed"),
        pytest.param(dataclasses.replace(COPIED, formers=(OTHER,)), OTHER, True, id="put back"),
        pytest.param(dataclasses.replace(COPIED, source="another"), BROUGHT, True, id="the same in another Secret"),
        pytest.param(COPIED, None, False, id="unusable"),
        pytest.param(Keyring(KEY), None, False, id="unusable at the first start"),
    ],
)
@pytest.mark.parametrize("is_asked", [False, True])
def test_when_an_admins_authority_is_taken(
    known: Keyring, brought: Authority | None, *, taken: bool, is_asked: bool
) -> None:
    """What the admin's Secret holds signs, whatever its age; the operator never makes one in its place."""
    wanted = wish(source="mine", brought=brought, is_asked=is_asked, needed=5000 * DAY)
    found = keyring.successor(known, wanted, NOW + 800 * DAY)
    assert (found[0] if found is not None else None) == (brought if taken else None)


@pytest.mark.parametrize("lifetime", [dt.timedelta(seconds=6), 30 * DAY, 3650 * DAY])
@pytest.mark.parametrize("needed", [dt.timedelta(hours=26), 89 * DAY, 400 * DAY, 36500 * DAY])
def test_no_run_is_cut_off_by_a_root(lifetime: dt.timedelta, needed: dt.timedelta) -> None:
    """Whenever a run starts, the root that signs for it lives as long as the run's certificate has to."""
    known, time = Keyring(KEY), NOW
    for _ in range(20):
        found = keyring.successor(known, wish(lifetime=lifetime, needed=needed), time)
        if found is not None:
            known = known.succeeded_by(found[0], None)
        assert known.current is not None
        assert known.current.ends >= time + needed
        time += lifetime / 4


def test_the_former_one_is_kept() -> None:
    """Who signed until now is a former one, and one that signs again is no former one any more."""
    exchanged = OURS.succeeded_by(OTHER, None)
    assert (exchanged.current, exchanged.formers) == (OTHER, (ROOT,))
    assert exchanged.fingerprint_key == KEY
    assert exchanged.find(ROOT.fingerprint) == ROOT
    back = exchanged.succeeded_by(ROOT, "mine")
    assert (back.current, back.formers, back.source) == (ROOT, (OTHER,), "mine")


def run(uid: str, phase: str | None) -> dict[str, Any]:
    """An AgentAction."""
    return {"metadata": {"uid": uid}, "status": {"phase": phase} if phase else {}}


def pod(uid: str, authority: Authority | None) -> dict[str, Any]:
    """A run's pod."""
    labels = {"outhaul.dev/action": uid}
    if authority is not None:
        labels["outhaul.dev/authority"] = authority.fingerprint
    return {"metadata": {"labels": labels}}


@pytest.mark.parametrize(
    ("actions", "pods", "kept"),
    [
        pytest.param([], [], (), id="nothing runs"),
        pytest.param([run("a", "Running")], [pod("a", ROOT)], (ROOT,), id="a run under it"),
        pytest.param([run("a", "Pending")], [pod("a", ROOT)], (ROOT,), id="a run under it that has not started"),
        pytest.param([run("a", "Running")], [pod("a", OTHER)], (), id="a run under another"),
        pytest.param([run("a", "Failed"), run("b", "Succeeded")], [pod("a", ROOT), pod("b", ROOT)], (), id="ended"),
        pytest.param([run("a", None)], [], (ROOT,), id="a run without a pod yet"),
        pytest.param([run("a", "Running")], [pod("a", None)], (ROOT,), id="a pod that does not say"),
        pytest.param([run("a", "Running"), run("b", "Running")], [pod("a", OTHER)], (ROOT,), id="only one has a pod"),
        pytest.param([], [pod("a", ROOT)], (), id="a pod without its run"),
        pytest.param([run("a", "Running")], [{"metadata": {}}], (ROOT,), id="a pod without labels"),
    ],
)
def test_when_a_former_authority_is_given_up(actions: list[Any], pods: list[Any], kept: tuple[Authority, ...]) -> None:
    """It is kept as long as a run may be in flight that was started under it."""
    known = Keyring(KEY, OTHER, (ROOT,))
    assert known.without_unused(keyring.in_use(actions, pods), NOW + DAY).formers == kept


def test_what_is_over_is_given_up() -> None:
    """Nothing that it has signed is valid any more, so it helps nobody."""
    known = Keyring(KEY, OTHER, (ROOT,))
    assert known.without_unused(None, ROOT.ends).formers == ()


@pytest.mark.parametrize("known", [Keyring(KEY), OURS, COPIED, Keyring(KEY, ROOT, (OTHER, BROUGHT), "mine")])
def test_a_keyring_survives_being_stored(known: Keyring) -> None:
    """What is read is what was written, whatever the order of former authorities."""
    loaded = keyring.from_files(keyring.to_files(known))
    assert set(loaded.formers) == set(known.formers)
    assert dataclasses.replace(loaded, formers=known.formers) == known
    assert {one.key_pem for one in loaded.all} == {one.key_pem for one in known.all}


def test_a_secret_of_somebody_else_is_no_keyring() -> None:
    """A Secret without the key of fingerprints, such as cert-manager's, is not taken for the operator's own."""
    with pytest.raises(TrustError, match=r"no fingerprint\.key"):
        keyring.from_files({"tls.crt": ROOT.roots, "tls.key": ROOT.key_pem, "ca.crt": ROOT.roots})


@pytest.mark.parametrize("file", ["tls.crt", "tls.key", "former-{}.key"])
def test_a_damaged_keyring_is_refused(file: str) -> None:
    """Half an authority is an error, and no reason to make another."""
    files = keyring.to_files(Keyring(KEY, ROOT, (OTHER,)))
    del files[file.format(OTHER.fingerprint)]
    with pytest.raises(TrustError, match="it needs"):
        keyring.from_files(files)


@pytest.mark.parametrize(
    ("life", "left", "is_ending"),
    [
        (90 * DAY, 30 * DAY, False),  # cert-manager renews about now
        (90 * DAY, 17 * DAY, True),
        (3650 * DAY, 61 * DAY, False),
        (3650 * DAY, 59 * DAY, True),
        (DAY, DAY / 4, False),
        (DAY, DAY / 6, True),
    ],
)
def test_when_an_end_is_spoken_of(life: dt.timedelta, left: dt.timedelta, *, is_ending: bool) -> None:
    """Well before it, and not while somebody who renews in time has not done so."""
    authority = trust.create_authority(NOW, life)
    assert keyring.is_ending(authority, NOW + life - left) is is_ending


def test_keys_are_never_shown() -> None:
    """No key is part of what is printed of a keyring."""
    text = repr(Keyring(KEY, ROOT, (OTHER,)))
    assert "kkkk" not in text
    assert "key=" not in text
