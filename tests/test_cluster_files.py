"""What Ray reads in cluster.yaml and rayjob.yaml, the commands in docs/cluster.md, and that faults are told as recorded."""

from __future__ import annotations

import copy
import re
import shlex
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import ray
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.processes import run
from workflows.cli import main as unlearn

ROOT = Path(__file__).resolve().parent.parent
CLUSTER = ROOT / "cluster.yaml"
RAYJOB = ROOT / "rayjob.yaml"
GUIDE = (ROOT / "docs" / "cluster.md").read_text()
SHARED = Path("/shared")


@pytest.fixture
def cluster() -> dict[str, Any]:
    """With Ray's defaults filled in, as ``ray up`` does before it asks the cloud."""
    return prepare_config(yaml.safe_load(CLUSTER.read_text()))


@pytest.fixture
def job() -> dict[str, Any]:
    return yaml.safe_load(RAYJOB.read_text())


@pytest.fixture(scope="module")
def ray_cli() -> click.Group:
    """Ray's own commands, which take seconds to load: only the process that runs these tests need wait for them."""
    from ray.scripts.scripts import cli

    return cli


# cluster.yaml


def test_cluster_file_fits_rays_schema(cluster):
    validate_config(cluster)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("max_worker",), 4), (("max_workers",), "4"), (("available_node_types", "gpu", "min_worker"), 0)],
)
def test_rays_schema_refuses_a_slip(cluster, path, value):
    """The check above has teeth."""
    target = cluster
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validate_config(cluster)


def test_an_idle_cluster_is_its_head_alone(cluster):
    types = cluster["available_node_types"]
    workers = {name: node for name, node in types.items() if name != cluster["head_node_type"]}
    assert types[cluster["head_node_type"]]["max_workers"] == 0
    assert [node["min_workers"] for node in workers.values()] == [0]
    assert 0 < sum(node["max_workers"] for node in workers.values()) <= cluster["max_workers"]


def test_nodes_get_the_whole_project_and_the_token(cluster):
    """The launcher stops at a local path that does not exist, and pip at a package that was not copied."""
    mounts = dict(cluster["file_mounts"])
    assert mounts.pop("~/.ray/auth_token") == "~/.ray/auth_token"
    assert all((ROOT / local).exists() for local in mounts.values())
    assert {remote.removeprefix("~/unlearn-grid/") for remote in mounts} == set(mounts.values())
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {"pyproject.toml", "constraints.txt", "README.md", *(name.rstrip("*") for name in packages)} == set(
        mounts.values()
    )


def test_nodes_ask_for_the_token_and_the_dashboard_stays_on_loopback(cluster):
    assert any("export RAY_AUTH_MODE=token" in command for command in cluster["setup_commands"])
    head = " ".join(cluster["head_start_ray_commands"])
    assert re.findall(r"--dashboard-host[= ](\S+)", head) == ["127.0.0.1"]
    assert "0.0.0.0" not in CLUSTER.read_text()


def test_every_node_mounts_the_shared_store(cluster):
    mounts = [command for command in cluster["initialization_commands"] if "sudo mount" in command]
    assert len(mounts) == 1
    assert mounts[0].split()[-1] == str(SHARED)
    assert "lookupcache=positive" in mounts[0], "or a node remembers for a minute that another one's file was not there"


def test_node_commands_are_shell_and_their_ray_options_exist(cluster, ray_cli):
    names = ("initialization_commands", "setup_commands", "head_setup_commands")
    starts = ("head_start_ray_commands", "worker_start_ray_commands")
    for command in [command for name in (*names, *starts) for command in cluster[name]]:
        checked = run(["bash", "-n", "-c", command])
        assert checked.returncode == 0, (command, checked.stderr)
    for command in [part for name in starts for line in cluster[name] for part in line.split(";")]:
        if command.split()[0] == "ray":
            check_click(ray_cli, shlex.split(command)[1:])


def test_cluster_file_holds_no_experiment_settings():
    text = CLUSTER.read_text()
    settings = (
        "--dataset",
        "--arch",
        "--scenario",
        "--key",
        "--methods",
        "--seeds",
        "--out",
        "workflows grid",
        "unlearn ",
    )
    assert [setting for setting in settings if setting in text] == []


# rayjob.yaml


def test_ray_reads_the_job_files_cluster(job):
    """KubeRay's own schema is not shipped with Ray; this is how Ray's autoscaler reads the cluster, with its checks."""
    spec = job["spec"]["rayClusterSpec"]
    config = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": job["metadata"]["name"], "namespace": "default"}, "spec": copy.deepcopy(spec)}
    )
    head, workers = config["available_node_types"]["headgroup"], config["available_node_types"]["gpu"]
    assert "GPU" not in head["resources"]
    assert workers["resources"]["GPU"] >= 1
    assert workers["resources"]["CPU"] >= 4 * workers["resources"]["GPU"]  # four workers share a GPU, a CPU each


def test_job_file_is_a_ray_job_that_cleans_up_and_asks_for_a_token(job):
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    # a misspelt field is dropped by Kubernetes without a word; these are of KubeRay's RayJobSpec and RayClusterSpec
    assert set(spec) == {
        "entrypoint",
        "shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished",
        "backoffLimit",
        "rayClusterSpec",
    }
    assert set(spec["rayClusterSpec"]) == {
        "rayVersion",
        "authOptions",
        "enableInTreeAutoscaling",
        "headGroupSpec",
        "workerGroupSpecs",
    }
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert spec["rayClusterSpec"]["rayVersion"] == ray.__version__
    for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
        assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_pods_are_alike_and_ask_for_what_they_may_use(job):
    containers = [container for pod in pods(job) for container in pod["containers"]]
    assert len(containers) >= 2
    assert len({container["image"] for container in containers}) == 1
    for container in containers:
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_job_writes_where_every_pod_has_the_shared_volume(job):
    command = shlex.split(job["spec"]["entrypoint"])
    out = Path(command[command.index("--out") + 1])
    for pod in pods(job):
        claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: claims[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
        assert [path for path in mounts if out.is_relative_to(path)] == [str(SHARED)]


def test_the_jobs_entrypoint_is_a_command_of_this_project(job, capsys):
    command = shlex.split(job["spec"]["entrypoint"])
    assert command[:4] == ["python", "-m", "workflows", "grid"]
    assert command[command.index("--address") + 1] == "auto"
    check_unlearn(command[3:], capsys)


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    spec = job["spec"]["rayClusterSpec"]
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


# docs/cluster.md


def fenced_commands() -> list[str]:
    """One per line; the blocks that have a language are no shell."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", GUIDE, re.MULTILINE | re.DOTALL)
    shell = [block.replace("\\\n", " ") for language, block in blocks if not language]
    return [line.strip() for block in shell for line in block.splitlines()]


def inline_commands() -> list[str]:
    """As named in a sentence: perhaps without their arguments."""
    prose = re.sub(r"^ *```.*?^ *```$", "", GUIDE, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def programs(command: str) -> Iterator[list[str]]:
    """The command, and those that it carries: after ``--``, or quoted for the head."""
    words = shlex.split(command)
    if "--" in words:
        yield from programs(shlex.join(words[words.index("--") + 1 :]))
    if words[:2] == ["ray", "exec"]:
        yield from programs(words[-1])
    yield words[2:] if words[:3] == ["python", "-m", "workflows"] else words


FENCED = [words for command in fenced_commands() for words in programs(command)]
INLINE = [words for command in inline_commands() for words in programs(command)]


def of(program: str, commands: list[list[str]]) -> list[Any]:
    return [pytest.param(words[1:], id=" ".join(words)) for words in commands if words[0] == program and words[1:]]


@pytest.mark.parametrize("words", of("ray", FENCED))
def test_ray_commands_of_the_guide_parse(ray_cli, words):
    check_click(ray_cli, words)


@pytest.mark.parametrize("words", of("ray", INLINE))
def test_ray_commands_named_in_the_guide_exist(ray_cli, words):
    check_click(ray_cli, words, complete=False)


def test_mlflow_commands_of_the_guide_parse():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what mlflow's own modules cause while they load
        from mlflow.cli import cli as mlflow_cli

    commands = [words for words in FENCED if words[0] == "mlflow"]
    assert commands
    for words in commands:
        check_click(mlflow_cli, words[1:])
    server = mlflow_cli.commands["server"]
    known = {name for option in server.params for name in option.opts}
    assert set(re.findall(r"(?<=`)--(?:host|allowed-hosts)\b", GUIDE)) <= known


@pytest.mark.parametrize("words", [*of("unlearn", FENCED), *of("workflows", FENCED), *of("unlearn", INLINE)])
def test_our_commands_of_the_guide_exist(words, capsys):
    check_unlearn(words, capsys)


def test_the_guide_reaches_the_job_that_the_issue_asks_for():
    """From nothing to a grid on the cluster, tracked by a server, and watched."""
    commands = {" ".join(words[:3]) for words in FENCED}
    assert {"ray get-auth-token --generate", "ray up cluster.yaml", "ray dashboard cluster.yaml"} <= commands
    assert {"ray job submit", "mlflow server --host", "unlearn status --out", "kubectl apply -f"} <= commands
    for words in FENCED:
        if words[:3] == ["ray", "job", "submit"]:
            assert words[words.index("--") + 1 :][:4] == ["python", "-m", "workflows", "grid"]
            assert Path(words[words.index("--out") + 1]).is_relative_to(SHARED)


def test_the_guide_names_every_placeholder_and_only_files_that_exist():
    placeholders = set(re.findall(r"REPLACE_WITH_[A-Z_]*[A-Z]", CLUSTER.read_text() + RAYJOB.read_text()))
    assert placeholders
    assert placeholders == set(re.findall(r"REPLACE_WITH_[A-Z_]*[A-Z]", GUIDE))
    for link in re.findall(r"\]\(([^)#]+)\)", GUIDE):
        assert (ROOT / "docs" / link).exists(), link
    for name in re.findall(r"\S+\.yaml\b", " ".join(fenced_commands())):
        assert (ROOT / name).exists(), name
    assert (ROOT / ".rayignore").exists()


# the real parsers


def check_click(group: click.Group, words: list[str], complete: bool = True) -> None:
    """Parse as the program would, up to running it; a command named in passing need only exist with its options."""
    command: click.Command = group
    words = list(words)
    while isinstance(command, click.Group):
        assert words, f"{command.name}: which command?"
        found = command.get_command(click.Context(command), name := words.pop(0))
        assert found is not None, f"{group.name} has no command {name}"
        command = found
    if complete:
        command.make_context(command.name, list(words))  # raises click.UsageError
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    ours = words[: words.index("--")] if "--" in words else words
    assert {word.split("=")[0] for word in ours if word.startswith("-")} <= known


def check_unlearn(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Our parser takes the values it comes to before ``--help``, and the help names every option."""
    with pytest.raises(SystemExit) as stop:
        unlearn([*words, "--help"])
    shown = capsys.readouterr()
    assert stop.value.code == 0, shown.err
    known = set(re.findall(r"--[a-z][a-z-]*", shown.out))
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= known
