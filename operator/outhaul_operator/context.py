"""What carrying out a run needs beside the run itself."""

from dataclasses import dataclass, field

from outhaul_operator.authorities import Authorities
from outhaul_operator.budget import Budget
from outhaul_operator.cluster import Cluster
from outhaul_operator.settings import Settings
from outhaul_operator.templates import Renderer
from outhaul_operator.view import View


@dataclass(frozen=True)
class Context:
    """The API server, what was seen of it, the settings, and what the operator keeps for itself."""

    cluster: Cluster
    view: View
    settings: Settings
    authorities: Authorities
    """Sign the certificates of runs, and prove to their agents who calls."""
    fingerprint_key: bytes = field(repr=False)
    """For the keyed digests of sensitive outputs."""
    budget: Budget = field(default_factory=Budget)
    """For outputs on their way through this process."""
    renderer: Renderer = field(default_factory=Renderer)
    """Of templates."""
