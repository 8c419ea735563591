# Plays an operator of a far future: the real agent gets this run's instructions as ones of protocol 99.
set -eu
cp -rL /outhaul/run /tmp/run
python - <<'END'
import json, pathlib

file = pathlib.Path("/tmp/run/run.json")
document = json.loads(file.read_text())
file.chmod(0o600)
file.write_text(json.dumps(document | {"protocolVersions": [99], "operatorVersion": "99.0"}))
END
OUTHAUL_RUN_DIR=/tmp/run exec outhaul-agent
