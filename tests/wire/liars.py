"""Agents that say what a test likes, served as a run's agent is."""

# ruff: noqa: N802, ARG002 - methods as in the contract

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from outhaul_grpc import layout
from outhaul_grpc import server as wire
from outhaul_grpc.v1 import agent_pb2 as pb
from outhaul_grpc.v1.agent_pb2_grpc import AgentServicer, add_AgentServicer_to_server
from outhaul_operator import agents, trust
from outhaul_operator.agents import Agent
from wire.harness import fresh_address, now
from wire.identities import server_leaf

UID = "run"


class Liar(AgentServicer):
    """An agent whose every answer a test decides."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def _answer(self, method: str, request: Any) -> Any:
        return self.answers[method](request)

    async def GetInfo(self, request: Any, context: Any) -> Any:
        if "abort" in self.answers:
            await context.abort(*self.answers["abort"])
        return self._answer("info", request)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for state in aiter_of(self._answer("watch", request)):
            yield pb.WatchResponse(state=state)

    async def ListOutputs(self, request: Any, context: Any) -> Any:
        return self._answer("outputs", request)

    async def ReadOutput(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for chunk in aiter_of(self._answer("read", request)):
            yield pb.ReadOutputResponse(chunk=chunk)

    async def ReadSource(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in aiter_of(self._answer("source", request)):
            yield message

    async def Acknowledge(self, request: Any, context: Any) -> Any:
        return self._answer("acknowledge", request)


async def aiter_of(items: Any) -> AsyncIterator[Any]:
    """Yields from an iterable or an asynchronous one."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


@asynccontextmanager
async def serving(authority: trust.Authority, liar: Liar, uid: str = UID) -> AsyncIterator[Agent]:
    """Serves as a run's agent, and connects to it as the operator."""
    leaf, ip = server_leaf(authority, uid), fresh_address()
    server = wire.create_server()
    add_AgentServicer_to_server(liar, server)
    credentials = wire.server_credentials(certificate=leaf.certificate, key=leaf.key, roots=authority.roots)
    server.add_secure_port(layout.socket_address(ip, layout.PORT), credentials)
    await server.start()
    try:
        identity = trust.issue_operator(authority, now())
        async with agents.connect(ip, run_uid=uid, identity=identity, roots=authority.roots) as agent:
            yield agent
    finally:
        await server.stop(None)
