"""Gets ahead, in one go, what the tests need and this machine lacks: no test waits for a build."""

from cluster import binaries, images, packages, stack
from cluster.node import KUBELET, NEEDS, SCHEDULER, Node
from cluster.progress import say


def prepare(*, pods: bool) -> None:
    """Installs packages, builds programs in one build, since two take longer, and images.

    Args:
        pods: whether for a real node, too; where none can run, that is said, and left out.

    Raises:
        ClusterError: something is not to be had.
    """
    packages.ensure(stack.NEEDS)
    reason = Node.available() if pods else None
    if reason:
        say(f"no real node will be tested: {reason}")
    is_node_wanted = pods and not reason
    if is_node_wanted:
        packages.ensure(NEEDS)
    binaries.ensure(*binaries.CONTROL_PLANE, *([KUBELET, SCHEDULER] if is_node_wanted else []))
    if is_node_wanted:
        images.everything()
