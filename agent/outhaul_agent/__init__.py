"""The program in a run's pod: run the commands, collect their outputs, hold them until they are stored.

Read `__main__` first, then `runs`. Needs grpcio and protobuf alone.
"""

from importlib.metadata import version

__version__ = version("outhaul")
