"""Plays an agent of a far future, in a run's pod: it speaks protocol 99 and nothing else.

It has the run's own certificate and answers the operator alone, as a real agent does, so what the operator finds
wrong with it is the version.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import grpc
from outhaul_grpc import layout, server
from outhaul_grpc.v1 import agent_pb2 as pb

RUN = Path(layout.RUN_DIR)


async def get_info(request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:
    """Says that it is this run's agent, and which protocol it speaks."""
    del request, context
    run_uid = json.loads((RUN / layout.RUN_FILE).read_text())["runUid"]
    return pb.GetInfoResponse(run_uid=run_uid, agent_version="99.0", protocol_versions=[99])


async def main() -> None:
    """Serves until the pod goes."""
    certificate, key, roots = (
        (RUN / name).read_bytes() for name in (layout.CERTIFICATE_FILE, layout.KEY_FILE, layout.ROOTS_FILE)
    )
    running = server.create_server()
    handler = grpc.unary_unary_rpc_method_handler(
        get_info,
        request_deserializer=pb.GetInfoRequest.FromString,
        response_serializer=pb.GetInfoResponse.SerializeToString,
    )
    running.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("outhaul.agent.v1.Agent", {"GetInfo": handler})]
    )
    address = layout.socket_address(os.environ[layout.POD_IP_VARIABLE], layout.PORT)
    running.add_secure_port(address, server.server_credentials(certificate=certificate, key=key, roots=roots))
    await running.start()
    await running.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
