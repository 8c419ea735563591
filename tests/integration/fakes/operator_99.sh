# Plays an operator of a far future: the real agent gets this run's instructions as ones of protocol 99.
set -eu
copy=$(mktemp -d)/run
cp -rL /outhaul/run "$copy"
python - "$copy" <<'END'
import json, pathlib, sys

file = pathlib.Path(sys.argv[1], "run.json")
document = json.loads(file.read_text())
file.chmod(0o600)
file.write_text(json.dumps(document | {"protocolVersions": [99], "operatorVersion": "99.0"}))
END
OUTHAUL_RUN_DIR=$copy exec outhaul-agent
