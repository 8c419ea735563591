"""The operator's authorities on a real API server: several operators, crashes, an admin's own, cert-manager's form.

Each `Authorities` here is what one operator process has, with a connection and a memory of its own. What whole
processes make of it is in `test_certificates`.
"""

import asyncio
import base64
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from certificates import FORMS, Own, own_authority
from cluster.controlplane import ControlPlane
from cluster.objects import Objects
from cluster.stack import await_kinds
from cluster.waiting import until
from outhaul_operator import keyring, trust
from outhaul_operator import settings as settings_module
from outhaul_operator.authorities import SECRET_NAME, Authorities, UnknownAuthorityError
from outhaul_operator.cluster import Cluster
from outhaul_operator.keyring import Keyring
from outhaul_operator.verdicts import WaitingError
from outhaul_operator.view import View

CRDS = Path(__file__).parents[2] / "crds"
HOUR = dt.timedelta(hours=1)
DAY = dt.timedelta(days=1)

Start = Callable[..., Awaitable[Authorities]]


@pytest.fixture
def home(control_plane: ControlPlane, namespace: str) -> Objects:
    """The operator's own namespace, empty."""
    return Objects(control_plane, namespace)


@pytest.fixture
async def new(home: Objects) -> AsyncIterator[Start]:
    """Makes what one more operator process has; `open` is not called yet."""
    clusters: list[Cluster] = []

    async def make(*options: str) -> Authorities:
        clusters.append(await Cluster.connect(str(home.control_plane.kubeconfig)))
        mine = ["--operator-namespace", home.namespace, "--namespace", home.namespace, "--resync-seconds", "0.1"]
        return Authorities(clusters[-1], View(lambda *_: None), settings_module.parse([*mine, *options]))

    yield make
    for cluster in clusters:
        await cluster.close()


@pytest.fixture
async def start(new: Start) -> Start:
    """Starts one more operator process, as far as its authorities go."""

    async def opened(*options: str) -> Authorities:
        made = await new(*options)
        await made.open()
        return made

    return opened


def stored(home: Objects) -> Keyring:
    """What the operator's Secret holds."""
    return keyring.from_files(home.secret(SECRET_NAME))


def current(home: Objects) -> trust.Authority:
    """The authority that the operator's Secret names as the one that signs."""
    found = stored(home).current
    assert found is not None
    return found


def ask_for_another(home: Objects) -> None:
    """Does what an admin does who wants another root."""
    home.patch("Secret", SECRET_NAME, {"metadata": {"annotations": {"outhaul.dev/rotate": "now"}}})


def put(home: Objects, own: Own, name: str = "mine") -> None:
    """Writes an admin's Secret as cert-manager does, in the place of what it held."""
    data = {key: base64.b64encode(value).decode() for key, value in own.files.items()}
    if home.find("Secret", name) is None:
        home.create("Secret", name, type="kubernetes.io/tls", data=data)
    else:
        home.patch("Secret", name, {"data": data})


def without_ca_file(own: Own) -> Own:
    """What cert-manager writes where the issuer does not say who has signed it."""
    return Own(own.certificate, {name: content for name, content in own.files.items() if name != "ca.crt"})


async def in_time(probe: Callable[[], bool], what: str) -> None:
    """Waits until something is so, while other tasks go on."""
    await asyncio.to_thread(until, probe, what=what)


@contextmanager
def kept(authorities: Authorities) -> Iterator[None]:
    """Lets an operator look after its authorities, as it does while it runs."""
    task = asyncio.create_task(authorities.keep())
    try:
        yield
    finally:
        task.cancel()


# -- several operators


async def test_operators_that_start_at_once_agree(home: Objects, new: Start) -> None:
    """Of several that find nothing and make an authority, one does, and all use that one."""
    several = [await new() for _ in range(8)]
    keys = await asyncio.gather(*(one.open() for one in several))
    signers = await asyncio.gather(*(one.signer(HOUR) for one in several))
    assert {one.fingerprint for one in signers} == {current(home).fingerprint}
    assert set(keys) == {stored(home).fingerprint_key}
    assert stored(home).formers == ()


async def test_an_operator_that_starts_again_goes_on(home: Objects, start: Start) -> None:
    """What there is is used; nothing is written."""
    await start()
    before = home.get("Secret", SECRET_NAME)["metadata"]["resourceVersion"]
    await (await start()).signer(HOUR)
    assert home.get("Secret", SECRET_NAME)["metadata"]["resourceVersion"] == before


async def test_operators_that_exchange_at_once_exchange_once(home: Objects, start: Start) -> None:
    """Of several that see that another root is wanted one makes it, and all sign with it from then on."""
    several = [await start() for _ in range(8)]
    old = current(home)
    ask_for_another(home)
    signers = await asyncio.gather(*(one.signer(HOUR) for one in several))
    assert {one.fingerprint for one in signers} == {current(home).fingerprint}
    assert stored(home).formers == (old,)
    assert "annotations" not in home.get("Secret", SECRET_NAME)["metadata"]
    message = home.said("Secret", SECRET_NAME, "Normal", "AuthorityExchanged")
    assert current(home).fingerprint in message
    assert "it was asked for" in message


async def test_an_operator_with_an_old_memory_reaches_new_runs(home: Objects, start: Start) -> None:
    """A run that another operator has started under a root that this one has not seen is dialled all the same."""
    behind, ahead = await start(), await start()
    old = current(home)
    ask_for_another(home)
    new = await ahead.signer(HOUR)
    link = await behind.link(new.fingerprint)
    assert link.roots == new.roots
    assert (await ahead.link(old.fingerprint)).roots == (await behind.link(old.fingerprint)).roots == old.roots


async def test_an_operator_with_an_old_memory_starts_no_run_under_an_old_root(home: Objects, start: Start) -> None:
    """What signs for a run is read when the run is started."""
    behind, ahead = await start(), await start()
    ask_for_another(home)
    new = await ahead.signer(HOUR)
    assert await behind.signer(HOUR) == new


async def test_a_root_that_nobody_knows_is_told(start: Start) -> None:
    """A run under a root that is not there is not dialled; whoever writes that label does not make us read for ever."""
    one = await start()
    for _ in range(3):
        with pytest.raises(UnknownAuthorityError, match=r"not known \(0123\)"):
            await one.link("0123")


# -- our own roots


async def test_a_root_is_exchanged_in_its_time(home: Objects, start: Start) -> None:
    """Without anybody's doing another root signs once two thirds of the life of one are over."""
    one = await start("--root-lifetime", "3s")
    first = current(home)
    with kept(one):
        await in_time(lambda: current(home) != first, "another root")
    assert (await one.signer(HOUR)).fingerprint != first.fingerprint


async def test_a_very_long_run_gets_a_root_that_lives_longer(home: Objects, start: Start) -> None:
    """The certificate of a run is not cut short by its root, however long the run may take."""
    one = await start("--root-lifetime", "240h")
    short = await one.signer(30 * DAY)
    assert short == current(home)
    signer = await one.signer(5000 * DAY)
    assert signer.ends >= dt.datetime.now(dt.UTC) + 5000 * DAY
    assert stored(home).formers == (short,)
    assert await one.signer(30 * DAY) == signer


async def test_a_deleted_secret_is_made_anew(home: Objects, start: Start) -> None:
    """Under a new root, and with what runs in flight and fingerprints need, which a running operator remembers."""
    one = await start()
    before = stored(home)
    home.delete("Secret", SECRET_NAME)
    signer = await one.signer(HOUR)
    assert stored(home).current == signer
    assert stored(home).formers == (before.current,)
    assert stored(home).fingerprint_key == before.fingerprint_key


async def test_a_foreign_secret_is_left_alone(home: Objects, start: Start) -> None:
    """A Secret of our name that cert-manager or somebody else has made is an error that says what to do."""
    put(home, own_authority(), SECRET_NAME)
    before = home.get("Secret", SECRET_NAME)
    with pytest.raises(trust.TrustError, match=f"Secret {home.namespace}/outhaul-ca: .*--ca-secret"):
        await start()
    assert home.get("Secret", SECRET_NAME) == before


@pytest.fixture
def kinds(control_plane: ControlPlane) -> None:
    """Our kinds are known."""
    control_plane.kubectl("apply", "-k", str(CRDS))
    await_kinds(control_plane)


def run(home: Objects, name: str, authority: trust.Authority | None) -> None:
    """Makes a run that has not ended, with a pod if it is under an authority."""
    commands = [{"name": "main", "command": ["true"]}]
    uid = home.create("AgentAction", name, spec={"commands": commands})["metadata"]["uid"]
    if authority is None:
        return
    labels = {
        "app.kubernetes.io/managed-by": "outhaul",
        "outhaul.dev/action": uid,
        "outhaul.dev/authority": authority.fingerprint,
    }
    container = {"name": "agent", "image": "none"}
    home.create("Pod", name, metadata={"labels": labels}, spec={"containers": [container]})


async def exchanged(home: Objects) -> None:
    """Asks for another root and waits for it."""
    last = current(home)
    ask_for_another(home)
    await in_time(lambda: current(home) != last, "another root")


@pytest.mark.usefixtures("kinds")
async def test_a_former_root_is_given_up_after_its_last_run(home: Objects, start: Start) -> None:
    """It stays while a run under it is in flight, or one has no pod yet, whatever an operator has seen of that."""
    one = await start()
    old = current(home)
    run(home, "under-it", old)
    run(home, "unknown", None)
    with kept(one):
        await exchanged(home)
        middle = current(home)
        # By the second of these the operator has looked, since the first, for what can go.
        await exchanged(home)
        await exchanged(home)
        assert {old, middle} <= set(stored(home).formers)
        home.delete("AgentAction", "unknown")
        await in_time(lambda: stored(home).formers == (old,), "the one without a run is given up")
        home.patch("AgentAction", "under-it/status", {"status": {"phase": "Succeeded"}})
        await in_time(lambda: stored(home).formers == (), "all are given up")


# -- an admin's own authority


AS_WRITTEN: dict[str, Callable[[], Own]] = {
    **{form: partial(own_authority, form) for form in FORMS},
    "self-signed": partial(own_authority, self_signed=True),
    "without ca.crt": lambda: without_ca_file(own_authority()),
}


@pytest.mark.parametrize("own", AS_WRITTEN.values(), ids=AS_WRITTEN.keys())
async def test_an_authority_of_cert_manager_signs(home: Objects, start: Start, own: Callable[[], Own]) -> None:
    """Each form in which cert-manager writes an authority is taken; the first certificate of the chain is it."""
    written = own()
    put(home, written)
    one = await start("--ca-secret", "mine")
    assert (await one.signer(HOUR)).certificate == written.certificate
    assert stored(home).source == "mine"


async def test_cert_manager_renews_it(home: Objects, start: Start) -> None:
    """A renewed authority signs from the next run on; runs in flight are still reached."""
    first, second = own_authority(), own_authority()
    put(home, first)
    one = await start("--ca-secret", "mine")
    old = await one.signer(HOUR)
    put(home, second)
    assert (await one.signer(HOUR)).certificate == second.certificate
    again = await start("--ca-secret", "mine")
    for operator in (one, again):
        assert (await operator.link(old.fingerprint)).roots == old.roots


async def test_operators_agree_on_a_renewed_one(home: Objects, start: Start) -> None:
    """Of several that see a renewed authority none brings the one before back."""
    put(home, own_authority())
    several = [await start("--ca-secret", "mine") for _ in range(4)]
    for _ in range(3):
        renewed = own_authority()
        put(home, renewed)
        signers = await asyncio.gather(*(one.signer(HOUR) for one in several))
        assert {one.certificate for one in signers} == {renewed.certificate}
    assert len(stored(home).formers) == 3


BROKEN: dict[str, tuple[Callable[[], Own | None], str]] = {
    "missing": (lambda: None, "not found"),
    "expired": (lambda: own_authority(ends=-HOUR), r"Secret {}/mine: tls.crt is valid from .* which is not now"),
    "empty": (
        lambda: Own(own_authority().certificate, {"tls.crt": b"", "tls.key": b"", "ca.crt": b""}),
        "Secret {}/mine: it needs tls.crt and tls.key",
    ),
    "a leaf": (lambda: own_authority(is_ca=False), "Secret {}/mine: tls.crt is not the certificate of an authority"),
}


@pytest.mark.parametrize(("broken", "words"), BROKEN.values(), ids=BROKEN.keys())
async def test_no_run_starts_without_a_usable_one(
    home: Objects, start: Start, broken: Callable[[], Own | None], words: str
) -> None:
    """Runs wait, and the message says for what; once it is there they start. No root of our own stands in for it."""
    unusable = broken()
    if unusable is not None:
        put(home, unusable)
    one = await start("--ca-secret", "mine")
    with pytest.raises(WaitingError, match=words.format(home.namespace)) as caught:
        await one.signer(HOUR)
    assert caught.value.reason == "AuthorityUnusable"
    about = "mine" if unusable is not None else SECRET_NAME
    assert home.said("Secret", about, "Warning", "AuthorityUnusable") in str(caught.value)
    good = own_authority()
    put(home, good)
    assert (await one.signer(HOUR)).certificate == good.certificate


async def test_a_damaged_one_does_not_stop_runs(home: Objects, start: Start) -> None:
    """An authority that was good, and whose Secret is damaged or gone, signs until its end; people are warned."""
    good = own_authority()
    put(home, good)
    one = await start("--ca-secret", "mine")
    home.patch("Secret", "mine", {"data": {"tls.key": "AAAA"}})
    with kept(one):
        assert "no private key" in await asyncio.to_thread(home.said, "Secret", "mine", "Warning", "AuthorityUnusable")
        home.delete("Secret", "mine")
        assert "not found" in await asyncio.to_thread(home.said, "Secret", SECRET_NAME, "Warning", "AuthorityUnusable")
    assert (await one.signer(HOUR)).certificate == good.certificate


async def test_an_end_is_announced(home: Objects, start: Start) -> None:
    """An authority that ends soon is spoken of, once."""
    put(home, own_authority(begins=-90 * DAY, ends=10 * DAY))
    one = await start("--ca-secret", "mine")
    assert "put a newer one into Secret mine" in home.said("Secret", "mine", "Warning", "AuthorityEnds")
    with kept(one):
        # A look later there is no second event: an exchange is such a look.
        renewed = own_authority()
        put(home, renewed)
        await in_time(lambda: current(home).certificate == renewed.certificate, "the renewed one")
    assert len([one for one in home.events("Secret", "mine") if one[1] == "AuthorityEnds"]) == 1


async def test_it_is_not_for_the_operator_to_exchange(home: Objects, start: Start) -> None:
    """Who asks for another root is told where to put it."""
    own = own_authority()
    put(home, own)
    one = await start("--ca-secret", "mine")
    ask_for_another(home)
    assert (await one.signer(HOUR)).certificate == own.certificate
    assert "put another into Secret mine" in home.said("Secret", SECRET_NAME, "Warning", "AuthorityUnusable")
    assert "annotations" not in home.get("Secret", SECRET_NAME)["metadata"]


async def test_to_an_own_one_and_back(home: Objects, start: Start) -> None:
    """The setting decides at the next start; runs in flight are reached through both changes."""
    put(home, own_authority())
    await start()
    first = current(home)
    await start("--ca-secret", "mine")
    own = current(home)
    operator = await start()
    last = current(home)
    assert len({first.fingerprint, own.fingerprint, last.fingerprint}) == 3
    assert stored(home).source is None
    assert set(stored(home).formers) == {first, own}
    for one in (first, own, last):
        assert (await operator.link(one.fingerprint)).roots == one.roots
