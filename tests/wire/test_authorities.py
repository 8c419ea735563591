"""A run lives and ends under the authority that it was started with, whatever signs for others meanwhile."""

from collections.abc import Callable

import pytest
from certificates import FORMS, HOUR, certificate, ecdsa, extensions_of, own_authority
from outhaul_operator import agents, trust
from outhaul_operator.keyring import Keyring
from wire.harness import AgentProcess, now, run_spec, shell

StartAgent = Callable[..., AgentProcess]


async def test_agents_under_an_old_and_a_new_root_are_reached(start_agent: StartAgent) -> None:
    """After an exchange the operator follows runs of before and of after, each under its own root."""
    before = Keyring(b"", trust.create_authority(now()))
    after = before.succeeded_by(trust.create_authority(now()), None)
    for authority in (before.current, after.current):
        running = start_agent(run_spec(shell("true")), authority=authority)
        assert authority is not None
        kept = after.find(authority.fingerprint)
        assert kept is not None
        identity = trust.OperatorIdentity(kept).leaf(now())
        async with running.connect(identity=identity, roots=kept.roots) as agent:
            assert (await running.final(agent)).phase == "Succeeded"


@pytest.mark.parametrize("side", ["identity", "roots"])
async def test_roots_do_not_stand_in_for_each_other(start_agent: StartAgent, side: str) -> None:
    """An agent answers no identity of another root, and is not talked to by who expects another root's agent."""
    running = start_agent(run_spec(shell("true")))
    async with running.connect() as agent:
        await running.final(agent)
    other = trust.create_authority(now())
    wrong = {"identity": trust.issue_operator(other, now()), "roots": other.roots}[side]
    async with running.connect(**{side: wrong}) as stranger:
        with pytest.raises(agents.AgentUnreachable):
            await stranger.info()


@pytest.mark.parametrize("form", FORMS)
async def test_an_authority_of_an_admin_works_on_the_wire(start_agent: StartAgent, form: str) -> None:
    """An intermediate is enough as what both sides trust, and each kind of key that is taken works in a handshake."""
    files = own_authority(form).files
    authority = trust.load_authority(files["tls.crt"], files["tls.key"])
    running = start_agent(run_spec(shell("true")), authority=authority)
    async with running.connect() as agent:
        assert (await running.final(agent)).phase == "Succeeded"


async def test_a_brother_of_an_intermediate_is_a_stranger(start_agent: StartAgent) -> None:
    """Whoever else the same root has signed is not trusted: the authority itself is, and nothing above it."""
    root = ("root", ecdsa())
    valid = (now() - HOUR, now() + HOUR)
    mine, brother = (
        trust.Authority(certificate((name, key), root, valid, extensions_of()), key)
        for name, key in (("mine", ecdsa()), ("brother", ecdsa()))
    )
    running = start_agent(run_spec(shell("true")), authority=mine)
    async with running.connect() as agent:
        await running.final(agent)
    async with running.connect(identity=trust.issue_operator(brother, now())) as stranger:
        with pytest.raises(agents.AgentUnreachable):
            await stranger.info()
