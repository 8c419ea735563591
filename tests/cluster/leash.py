"""Becomes a command that the kernel kills when the process that started it dies.

`processes` runs this file as a script in place of the command: `leash.py PARENT SIGNAL COMMAND ...`. The
death signal survives `exec`, so the command keeps this process's id. It is bound to the parent's *thread*,
which `processes` keeps alive. With the signal `group` this process stays, and its end is the end of
everything that the command has started. It imports little, because every program of a cluster waits for it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Asks for the death signal, then replaces this process by the command."""
    parent, death_signal, *command = arguments
    group = death_signal == "group"
    if group:
        signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    number = signal.SIGTERM if group else int(death_signal)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        sys.exit("the process that started this one is gone already")
    # Python ignores these two, and what is ignored stays ignored in the command.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if group:
        _, status = os.waitpid(os.posix_spawnp(command[0], command, os.environ), 0)
        sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
