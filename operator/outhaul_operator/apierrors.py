"""What the API server's answers mean where it does not do what was asked: errors, told apart by what helps. Pure.

`cluster` raises them; whoever calls it decides what becomes of one.
"""

import json

from outhaul_operator.kinds import Object

_FORBIDDEN = 403
"""The status of what a role, a quota or a policy does not allow, which may change."""
UNPROCESSABLE = 422
"""The status of a patch whose test failed, and of an object that is invalid."""

_MAX_MESSAGE = 1000
_TOO_LARGE = "request is too large"
_ADMISSION = ("admission webhook ", "failed calling webhook ", "ValidatingAdmissionPolicy ")
"""What the API server says where one keeps something out, or does not answer: the status is the webhook's choice."""


class ApiError(Exception):
    """The API server did not do what was asked. `str()` names the object and quotes the server.

    Attributes:
        status: The HTTP status; 0 where there was no answer.
        message: The server's own words, at most 1,000 characters.
        retry_after_s: How long the server asks to be left alone.
    """

    def __init__(self, what: str, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{what}: {message}")
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_by_policy(self) -> bool:
        """Whether a quota, a right or an admission policy says no, or cannot be asked: all that may change."""
        return self.status == _FORBIDDEN or any(words in self.message for words in _ADMISSION)

    @property
    def is_refusal(self) -> bool:
        """Whether the answer is no, for good or for now; no answer, and a passing fault, are none."""
        return isinstance(self, RefusedError) or self.is_by_policy


class NotFoundError(ApiError):
    """The object, or its namespace, does not exist."""


class AlreadyExistsError(ApiError):
    """An object of that name exists."""


class ConflictError(ApiError):
    """The object is another one, or has changed, since it was read."""


class RefusedError(ApiError):
    """The server understood and said no (validation, permission, quota, a failed test of a JSON patch)."""


class UnavailableError(ApiError):
    """No answer, or a passing fault; the same request may succeed later."""


def parsed(data: bytes) -> Object | None:
    """Returns a JSON object; None where it is none, as where a proxy has answered."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def from_answer(what: str, status: int, data: bytes, retry_after: str) -> ApiError:
    """Returns the error of an answer.

    Args:
        what: What was asked for.
        status: The HTTP status.
        data: The body.
        retry_after: The header of that name, or an empty string.
    """
    answer = parsed(data) or {}
    retry_after_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    message = str(answer.get("message") or f"HTTP {status}")[:_MAX_MESSAGE]
    match status, answer.get("reason"):
        case 404, "NotFound":
            return NotFoundError(what, status, message)
        case 409, reason:
            conflict = AlreadyExistsError if reason == "AlreadyExists" else ConflictError
            return conflict(what, status, message)
        # 404 without that word is of a server that does not know the kind, as for a moment after its start.
        case ((401 | 404 | 408 | 429), _):
            return UnavailableError(what, status, message, retry_after_s)
        # Beyond etcd's limit the same request never succeeds.
        case _ if status >= 500 and _TOO_LARGE not in message:  # noqa: PLR2004
            return UnavailableError(what, status, message, retry_after_s)
        case _:
            return RefusedError(what, status, message)
