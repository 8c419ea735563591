"""Generated from `agent.proto` and `health.proto` by `agent/grpc/generate.py`; do not edit the code here."""
