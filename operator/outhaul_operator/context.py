"""What carrying out a run needs beside the run itself."""

from dataclasses import dataclass, field

from outhaul_operator.cluster import Cluster
from outhaul_operator.settings import Settings
from outhaul_operator.trust import Authority, OperatorIdentity
from outhaul_operator.view import View


@dataclass(frozen=True)
class Context:
    """The API server, what was seen of it, the settings, and both halves of trust."""

    cluster: Cluster
    view: View
    settings: Settings
    authority: Authority
    """Signs the certificates of runs."""
    identity: OperatorIdentity
    """Proves to agents who calls."""
    fingerprint_key: bytes = field(repr=False)
    """For the keyed digests of sensitive outputs."""
