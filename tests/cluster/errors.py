"""What can go wrong while a cluster is made: every error says what to do about it."""


class ClusterError(Exception):
    """The base of all errors of this package."""


class NotInTime(ClusterError):  # noqa: N818 - reads as a sentence
    """Something that was waited for did not happen before its deadline."""


class PackagesMissing(ClusterError):  # noqa: N818
    """Debian packages are needed and cannot be installed from here."""


class BinariesMissing(ClusterError):  # noqa: N818
    """A Kubernetes program was neither found nor built."""


class ComponentFailed(ClusterError):  # noqa: N818
    """A program of the cluster ended, or never became ready."""


class CommandFailed(ClusterError):  # noqa: N818
    """A command that was run to its end returned an error."""


class RequestFailed(ClusterError):  # noqa: N818
    """The API server answered with an error.

    Args:
        status: the HTTP status.
        message: what the API server said.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server answered {status}: {message}")
        self.status = status
