"""What is wrong is said on the object, by a condition and an event that tell what to do; and nothing is lost."""

from pathlib import Path

from cluster.objects import Json, Objects, condition_of, script
from cluster.stack import REPOSITORY, Stack
from cluster.waiting import until

FAKES = Path(__file__).parent / "fakes"
MIB = 1024 * 1024


def sized(**sizes: int) -> str:
    """A script that leaves outputs of these sizes."""
    return "; ".join(f'head -c {size} /dev/zero > "$OUTHAUL_OUTPUTS/{name}"' for name, size in sizes.items())


GOOD = script('printf fine > "$OUTHAUL_OUTPUTS/state"')


def failed_run(objects: Objects, name: str, number: int = 1) -> Json:
    """Waits until a run of an Installation has failed, checks that both objects say so, and returns the AgentAction."""
    run = objects.ran(name, number)
    status = run["status"]
    assert status["phase"] == "Failed"
    failed = condition_of(run, "Failed")
    assert failed is not None
    assert (failed["status"], failed["reason"], failed["message"]) == ("True", status["reason"], status["message"])
    stalled = objects.condition("Installation", name, "Stalled", "True", "RunFailed")
    assert status["message"] in stalled["message"]
    assert "outhaul.dev/retry" in stalled["message"]
    assert objects.condition("Installation", name, "Ready", "False", "RunFailed")
    assert objects.said("Installation", name, "Warning", "RunFailed") == stalled["message"]
    assert objects.said("AgentAction", run["metadata"]["name"], "Warning", status["reason"]) == status["message"]
    return run


def refused(objects: Objects, name: str, reason: str) -> str:
    """Waits until an Installation is stalled for this reason, without a run; returns the message."""
    stalled = objects.condition("Installation", name, "Stalled", "True", reason)
    assert objects.condition("Installation", name, "Ready", "False", reason)
    message: str = stalled["message"]
    assert objects.said("Installation", name, "Warning", reason) == message
    assert objects.runs(name) == []
    return message


def waits(objects: Objects, name: str, reason: str) -> str:
    """Waits until an Installation and its run say that the run waits for this reason; returns the run's message."""
    assert objects.condition("Installation", name, "Reconciling", "True", reason)
    assert objects.condition("Installation", name, "Ready", "False", reason)

    def told() -> Json | None:
        # Kubernetes' words change while it tries again, so the two are compared until they agree.
        (run,) = objects.runs(name)
        ready = condition_of(objects.get("Installation", name), "Reconciling")
        return run if ready and run["status"]["message"] in ready["message"] else None

    run = until(told, what="the Installation repeats what its run says")
    message: str = run["status"]["message"]
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Pending", reason)
    assert objects.condition("AgentAction", run["metadata"]["name"], "Started", "False", reason)
    said = ("Warning", reason, message)
    assert until(lambda: said in objects.events("AgentAction", run["metadata"]["name"]), what=f"an event {said}")
    return message


# -- what the operator itself refuses


def test_an_unknown_engine(objects: Objects) -> None:
    """An engine that nobody knows is refused, with the names of those that there are; a known one then works."""
    objects.install("service", **GOOD | {"engine": "nonsense"})
    message = refused(objects, "service", "UnknownEngine")
    assert "'nonsense'" in message
    assert all(engine in message for engine in ("exec", "porter", "terraform"))
    objects.respec("service", engine="exec")
    objects.ready("service")


def test_no_source(objects: Objects) -> None:
    """Engine terraform without a source is refused, and the message says which sources there are."""
    objects.install("service", engine="terraform")
    message = refused(objects, "service", "InvalidSpec")
    assert "spec.source" in message
    assert "files" in message
    assert "configMapRef" in message


def test_two_sources(objects: Objects) -> None:
    """A spec with two sources is refused, with both names."""
    source = {"files": {"main.tf": "# none"}, "configMapRef": {"name": "module"}}
    objects.install("service", engine="terraform", source=source)
    assert "not files and configMapRef" in refused(objects, "service", "InvalidSpec")


def test_no_commands(objects: Objects) -> None:
    """Engine exec without commands is refused, and the message says where they go."""
    objects.install("service", engine="exec")
    assert "spec.commands.install" in refused(objects, "service", "InvalidSpec")


def test_no_bundle(objects: Objects) -> None:
    """Engine porter without a bundle is refused."""
    objects.install("service", engine="porter")
    assert "spec.bundle" in refused(objects, "service", "InvalidSpec")


def test_a_file_that_leads_out_of_the_working_directory(objects: Objects) -> None:
    """A source file whose path leads elsewhere is refused by its name."""
    objects.install("service", **GOOD, source={"files": {"../elsewhere": "# none"}})
    assert "'../elsewhere'" in refused(objects, "service", "InvalidSpec")


# -- what is not there yet


def test_a_missing_agent_config(objects: Objects) -> None:
    """A named AgentConfig that does not exist is waited for by name; the run starts once it appears."""
    objects.install("service", **GOOD, agentConfig={"name": "special"})
    waiting = objects.condition("Installation", "service", "Reconciling", "True", "AgentConfigNotFound")
    assert "AgentConfig special does not exist" in waiting["message"]
    assert objects.said("Installation", "service", "Warning", "AgentConfigNotFound") == waiting["message"]
    assert objects.runs("service") == []
    objects.create("AgentConfig", "special", spec={})
    objects.ready("service")


def test_a_missing_config_map(objects: Objects) -> None:
    """A ConfigMap that does not exist is waited for by the pod, both objects name it, and the run then starts."""
    objects.install("service", **script("cp hello $OUTHAUL_OUTPUTS", source={"configMapRef": {"name": "sources"}}))
    assert '"sources" not found' in waits(objects, "service", "VolumeNotReady")
    objects.create("ConfigMap", "sources", data={"hello": "world"})
    objects.ready("service")
    assert objects.secret("service-outputs") == {"hello": b"world"}


def test_a_missing_service_account(objects: Objects) -> None:
    """A service account that does not exist keeps the pod from being made; once it is there the run starts."""
    objects.create("AgentConfig", "default", spec={"serviceAccount": "nobody"})
    objects.install("service", **GOOD)
    message = waits(objects, "service", "PodRefused")
    assert 'serviceaccount "nobody" not found' in message
    objects.create("ServiceAccount", "nobody")
    objects.ready("service")


def test_an_image_that_cannot_be_pulled(objects: Objects) -> None:
    """An image that cannot be had is named; after it is corrected a retry cancels the run that never started."""
    objects.create("AgentConfig", "default", spec={"image": "outhaul-does-not-exist"})
    objects.install("service", **GOOD)
    message = waits(objects, "service", "ImagePullFailed")
    assert "outhaul-does-not-exist" in message
    assert "AgentConfig" in message
    (first,) = objects.names("AgentAction")
    objects.patch("AgentConfig", "default", {"spec": {"image": "outhaul-agent"}})
    objects.annotate("service", {"outhaul.dev/retry": "with an image"})
    objects.ready("service")
    (second,) = objects.names("AgentAction")
    assert second != first
    objects.gone("Pod", first)


def test_a_pod_that_no_node_takes(objects: Objects) -> None:
    """A pod that fits on no node is said to wait for one, in the scheduler's words."""
    objects.create("AgentConfig", "default", spec={"podTemplate": {"spec": {"nodeSelector": {"disk": "none"}}}})
    objects.install("service", **GOOD)
    assert "0/1 nodes are available" in waits(objects, "service", "Unschedulable")


def test_a_quota_that_admits_no_pod(objects: Objects) -> None:
    """A pod that a quota keeps out is tried again until there is room, and the quota is quoted."""
    objects.limit("none", {"pods": "0"})
    objects.install("service", **GOOD)
    assert "exceeded quota: none" in waits(objects, "service", "PodRefused")
    objects.delete("ResourceQuota", "none")
    objects.ready("service")


def test_a_quota_that_admits_no_outputs(objects: Objects) -> None:
    """Outputs that a quota keeps out stay with the agent; both objects quote it, and they are stored once they may."""
    # What there is, and the run's own Secret.
    hard = {"count/secrets": str(len(objects.all("Secret")) + 1)}
    objects.limit("none", hard)
    objects.install("service", **GOOD)
    waiting = objects.condition("Installation", "service", "Reconciling", "True", "OutputsRefused")
    (run,) = objects.runs("service")
    name = run["metadata"]["name"]
    message = objects.said("AgentAction", name, "Warning", "OutputsRefused")
    assert "exceeded quota: none" in message
    assert message in waiting["message"]
    assert objects.get("AgentAction", name)["status"]["phase"] == "Running"
    objects.delete("ResourceQuota", "none")
    objects.ready("service")
    assert objects.secret("service-outputs") == {"state": b"fine"}
    assert objects.names("AgentAction") == [name]


# -- runs that fail


def test_a_service_account_without_rights(objects: Objects) -> None:
    """Terraform without rights on its state fails the run; the step and its exit code are named."""
    objects.create("ServiceAccount", "powerless")
    objects.create("AgentConfig", "default", spec={"serviceAccount": "powerless", "engine": "terraform"})
    module = (REPOSITORY / "samples/terraform/main.tf").read_text()
    objects.install("database", source={"files": {"main.tf": module}}, parameters={"name": "shop"})
    status = failed_run(objects, "database")["status"]
    assert status["reason"] == "CommandFailed"
    (step,) = (one for one in status["steps"] if one["phase"] == "Failed")
    assert f"step '{step['name']}' failed with exit code 1" in status["message"]


def test_a_command_that_does_not_exist(objects: Objects) -> None:
    """A program that the image lacks is named, with what to do."""
    commands = {"install": [{"name": "launch", "command": ["no-such-program"]}]}
    objects.install("service", engine="exec", commands=commands)
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "CommandNotFound"
    assert "'no-such-program' is not in the image" in status["message"]
    assert status["steps"][0]["exitCode"] == 127


def test_a_command_that_fails_in_the_middle(objects: Objects) -> None:
    """A step that fails is named with its exit code, and the steps after it are skipped."""
    objects.install("service", **script("true", "exit 3", "true"))
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "CommandFailed"
    assert "step 'second' failed with exit code 3" in status["message"]
    assert [(one["name"], one["phase"], one.get("exitCode")) for one in status["steps"]] == [
        ("first", "Succeeded", 0),
        ("second", "Failed", 3),
        ("third", "Skipped", None),
    ]


def test_a_failed_run_keeps_its_outputs_apart(objects: Objects) -> None:
    """What a failed run has left is kept in a record that says Failed, and in no latest Secret."""
    objects.install("service", **script('printf half > "$OUTHAUL_OUTPUTS/state"', "exit 1"))
    run = failed_run(objects, "service")["metadata"]["name"]
    assert objects.records("service") == {run: "Failed"}
    assert objects.secret(f"{run}-outputs") == {"state": b"half"}
    assert objects.find("Secret", "service-outputs") is None


def test_a_failed_upgrade_leaves_the_latest_outputs(objects: Objects) -> None:
    """An upgrade that fails changes nothing of what applications read."""
    objects.install("service", **GOOD)
    first = objects.ready("service")["status"]["action"]["name"]
    objects.respec("service", **script('printf broken > "$OUTHAUL_OUTPUTS/state"; exit 1'))
    second = failed_run(objects, "service", 2)["metadata"]["name"]
    assert objects.secret("service-outputs") == {"state": b"fine"}
    assert objects.records("service") == {first: "Current", second: "Failed"}
    outputs = condition_of(objects.get("Installation", "service"), "OutputsReady")
    assert outputs is not None
    assert (outputs["status"], outputs["observedGeneration"]) == ("True", 1)


def test_a_run_that_takes_too_long(objects: Objects) -> None:
    """A run that is not done within spec.timeout is stopped, and the step that it was at is named."""
    objects.install("service", **script("true", "sleep 600"), timeout="1s")
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "TimedOut"
    assert "timeout of 1 s was over at step 'second'" in status["message"]


# -- outputs


def test_output_that_is_no_json(objects: Objects) -> None:
    """An output command that does not print the JSON that it should fails the run, by its name and without the text."""
    source = {"command": {"command": ["sh", "-c", "echo '{\"password\": hunter2'"], "format": "json"}}
    objects.install("service", **script("true"), outputs={"from": [source]})
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "BadOutput"
    assert "'sh'" in status["message"]
    assert "format json" in status["message"]
    assert "hunter2" not in status["message"]


def test_a_required_output_that_is_missing(objects: Objects) -> None:
    """A required output that no file brings fails the run; the others are kept."""
    source = {"directory": {"path": "/outhaul/outputs", "required": ["token"]}}
    objects.install("service", **GOOD, outputs={"from": [source]})
    run = failed_run(objects, "service")
    assert run["status"]["reason"] == "BadOutput"
    assert "required output 'token' is missing" in run["status"]["message"]
    assert objects.secret(f"{run['metadata']['name']}-outputs") == {"state": b"fine"}


def test_a_manifest_that_is_missing(objects: Objects) -> None:
    """A manifest that no command wrote fails the run and is named."""
    objects.install("service", **script("true"), outputs={"from": [{"manifest": {"path": "outputs.json"}}]})
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "BadOutput"
    assert "manifest 'outputs.json'" in status["message"]


def test_two_outputs_of_one_name(objects: Objects) -> None:
    """An output that two sources bring fails the run: the name and both sources are told, and neither value is kept."""
    text = {"command": {"command": ["echo", "other"], "format": "text", "name": "state"}}
    source = {"directory": {"path": "/outhaul/outputs"}}
    objects.install("service", **GOOD, outputs={"from": [source, text]})
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "DuplicateOutput"
    assert "output 'state' is in directory '/outhaul/outputs' and in output command 'echo'" in status["message"]


def test_an_output_that_no_secret_holds(objects: Objects) -> None:
    """An output beyond 1 MiB fails the run by its name and size; the others are in a Failed record."""
    objects.install("service", **script(sized(big=MIB + 1, small=3)))
    run = failed_run(objects, "service")
    name = run["metadata"]["name"]
    assert run["status"]["reason"] == "OutputTooLarge"
    assert "big (1,048,577 bytes)" in run["status"]["message"]
    assert "1,048,576" in run["status"]["message"]
    outputs = objects.get("InstallationOutput", name)["status"]["outputs"]
    assert {one["name"]: (one["size"], one.get("secretKeyRef")) for one in outputs} == {
        "big": (MIB + 1, None),
        "small": (3, {"name": f"{name}-outputs", "key": "small"}),
    }
    assert objects.records("service") == {name: "Failed"}


def test_an_output_that_grows_too_large_leaves_the_latest(objects: Objects) -> None:
    """When an upgrade's output does not fit any more, applications keep the outputs that they have."""
    objects.install("service", **GOOD)
    objects.ready("service")
    before = objects.get("Secret", "service-outputs")["metadata"]["resourceVersion"]
    objects.respec("service", **script(sized(state=MIB + 1)))
    failed_run(objects, "service", 2)
    assert objects.get("Secret", "service-outputs")["metadata"]["resourceVersion"] == before


def test_outputs_beyond_one_secret_go_on_in_others(objects: Objects) -> None:
    """Outputs of more than 1 MiB in all are spread over numbered Secrets; the record says which key is where."""
    objects.install("service", **script(sized(a=600_000, b=600_000, c=600_000)))
    run = objects.ready("service")["status"]["action"]["name"]
    outputs = objects.get("InstallationOutput", run)["status"]["outputs"]
    places = {one["name"]: one["secretKeyRef"]["name"] for one in outputs}
    assert sorted(places.values()) == [f"{run}-outputs", f"{run}-outputs-1", f"{run}-outputs-2"]
    assert all(len(objects.secret(place)[name]) == 600_000 for name, place in places.items())
    latest = [objects.secret(name) for name in ("service-outputs", "service-outputs-1", "service-outputs-2")]
    assert {key: len(value) for data in latest for key, value in data.items()} == dict.fromkeys("abc", 600_000)


def test_secrets_that_are_not_needed_any_more_go(objects: Objects) -> None:
    """When later outputs fit into fewer Secrets, the latest ones that are left over are deleted."""
    objects.install("service", **script(sized(a=600_000, b=600_000)))
    objects.ready("service")
    objects.respec("service", **script(sized(a=1)))
    objects.ready("service")
    assert objects.secret("service-outputs") == {"a": b"\0"}
    assert objects.find("Secret", "service-outputs-1") is None


# -- agents of other versions


def agent_of(objects: Objects, command: list[str], files: dict[str, str]) -> None:
    """Makes the namespace's agents run another command, with these files in `/opt/fake`."""
    objects.create("ConfigMap", "fake", data=files)
    mount = {"name": "fake", "mountPath": "/opt/fake"}
    spec = {
        "containers": [{"name": "agent", "command": command, "volumeMounts": [mount]}],
        "volumes": [{"name": "fake", "configMap": {"name": "fake"}}],
    }
    objects.create("AgentConfig", "default", spec={"podTemplate": {"spec": spec}})


def test_an_agent_of_another_protocol_version(objects: Objects) -> None:
    """An agent that speaks another protocol fails the run; both versions are named, and what to do."""
    agent_of(objects, ["python", "/opt/fake/agent.py"], {"agent.py": (FAKES / "agent_99.py").read_text()})
    objects.install("service", **GOOD)
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "ProtocolMismatch"
    assert "the agent (version 99.0) speaks protocol 99, this operator speaks 1" in status["message"]
    assert "use an agent image of the operator's version" in status["message"]


def test_an_operator_of_another_protocol_version(objects: Objects) -> None:
    """An agent that does not know the protocol of its instructions runs nothing, and both versions are named."""
    agent_of(objects, ["sh", "/opt/fake/agent.sh"], {"agent.sh": (FAKES / "operator_99.sh").read_text()})
    objects.install("service", **GOOD)
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "ProtocolMismatch"
    assert "speaks protocol 99, this agent" in status["message"]
    assert "steps" not in status or {one["phase"] for one in status["steps"]} <= {"Pending", "Skipped"}


def test_an_image_without_the_agent(objects: Objects) -> None:
    """An image that lacks `outhaul-agent` fails the run at once, and says so."""
    agent_of(objects, ["no-such-agent"], {})
    objects.install("service", **GOOD)
    status = failed_run(objects, "service")["status"]
    assert status["reason"] == "ContainerNotStarted"
    assert "no-such-agent" in status["message"]


def test_an_agent_that_crashes(objects: Objects, stack: Stack) -> None:
    """An agent that ends without a word fails the run, with its exit code; nothing is run again."""
    agent_of(objects, ["sh", "-c", "echo started; exit 7"], {})
    objects.install("service", **GOOD)
    run = failed_run(objects, "service")
    assert run["status"]["reason"] == "AgentCrashed"
    assert "ended with code 7" in run["status"]["message"]
    assert stack.container_log(objects.namespace, run["metadata"]["name"]).count("started") == 1


def test_a_pod_that_is_deleted_during_its_run(objects: Objects, stack: Stack) -> None:
    """A run whose pod somebody deletes is stopped and cancelled; it is said why, and nothing is run again."""
    objects.install("service", **script("sleep 600"))
    run = objects.until("Installation", "service", lambda one: one.get("status", {}).get("action"), what="it has a run")
    name = run["name"]
    # Before that the agent is still being loaded, and as process 1 would not hear a signal.
    stack.printed(objects.namespace, name, "step main started")
    objects.delete("Pod", name)
    status = objects.ended(name)["status"]
    assert (status["phase"], status["reason"]) == ("Cancelled", "Cancelled")
    assert "told to stop" in objects.condition("Installation", "service", "Stalled", "True", "RunFailed")["message"]
    objects.gone("Pod", name)
    objects.settle()
    assert objects.names("Pod") == []
