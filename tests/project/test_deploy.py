"""Helm, Kubernetes, Compose, hadolint and systemd accept the files under docs/deploy."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from svc import __version__
from svc.recipe.load import load_recipe
from svc.serving.api.key_policies import parse_policies
from svc.settings import Settings
from tests.pages import ROOT, SIGNING_KEYS, WAIT, Shell, blocks, make_shop

DEPLOY = ROOT / "docs" / "deploy"
CHART = DEPLOY / "helm" / "svc"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
KUBERNETES = "1.31"
BOOKS = {"books.yaml": "name: books\n"}
CHANGED_VALUES: dict[str, Any] = {
    "existingClaim": "files",
    "image": {"tag": "test"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "batch", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "recipes": {**BOOKS, "Films_1.yaml": "name: Films_1\n"},
    "train": {"schedules": [{"recipe": "books", "schedule": "@daily"}, {"recipe": "Films_1", "schedule": "0 4 * * *"}]},
    "search": {"recipe": "Films_1", "runId": "2026-01-31", "workers": 3},
    "export": {
        "schedules": [
            {"recipe": "books", "schedule": "@daily", "output": "s3://x/a.parquet", "shards": 5, "parallelism": 2},
            {"recipe": "Films_1", "schedule": "@daily", "output": "s3://x/b.csv", "limit": 7, "related": True},
        ],
        "env": {"SVC_LOG_FORMAT": "json"},
    },
}
EXPOSED_VALUES: dict[str, Any] = {
    "image": {"digest": f"sha256:{'a' * 64}", "pullSecrets": ["registry"]},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls", "annotations": {"a": "b"}},
    "serviceAccount": {"create": True, "name": "books", "annotations": {"iam.example.org/role": "reader"}},
    "autoscaling": {"enabled": True, "maxReplicas": 5},
    "metrics": {"port": 0, "serviceMonitor": {"enabled": True, "keySecret": {"name": "scraper", "key": "key"}}},
    "serve": {
        "workers": 4,
        "startupSeconds": 60,
        "podAnnotations": {"example.org/team": "shop"},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "keyPolicies": {
            "shop": {"recipes": ["books*"], "verbs": ["recommend"], "rate": "200/s", "expires": "2027-01-01"}
        },
    },
}


def documents(text: str) -> Iterator[dict[str, Any]]:
    return (document for document in yaml.safe_load_all(text) if document)


def rendered(values: dict[str, Any], release: str = "shop") -> dict[tuple[str, str], dict[str, Any]]:
    """Return the documents that `helm template shop` renders, by kind and name."""
    helm = pytest.importorskip("helm_python", reason="Helm's library has no wheel here", exc_type=ImportError)
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name=release, namespace="test")
    found = [d for path, text in files.items() if path.endswith(".yaml") for d in documents(text)]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def check_resource(document: dict[str, Any]) -> None:
    import kubernetes_validate

    if document["apiVersion"].startswith("monitoring.coreos.com/"):
        return  # a custom resource: the schemas of Kubernetes do not know it
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def containers(document: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each container of a workload with the specification of its pod."""
    specification = document.get("spec", {})
    template = specification.get("jobTemplate", document).get("spec", {}).get("template")
    return [(template["spec"], container) for container in template["spec"]["containers"]] if template else []


def check_hardened(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Check that a container is not root, gains no privileges, and has a read-only root with a writable /tmp."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]


@pytest.mark.integration
@pytest.mark.parametrize("path", sorted((DEPLOY / "kubernetes").rglob("*.yaml")), ids=lambda path: path.name)
def test_kubernetes_manifests_hold_to_the_schemas(path: Path) -> None:
    """A misspelled key is an error. Containers are hardened."""
    for document in documents(path.read_text()):
        check_resource(document)
        for pod, container in containers(document):
            check_hardened(pod, container)


def job_command(file: str = "train-cronjob.yaml") -> list[str]:
    """Return the command of the last job in a manifest, which trains and signs."""
    *_, document = documents((DEPLOY / "kubernetes" / file).read_text())
    ((_, container),) = containers(document)
    return list(container["command"])


def fake_svc(folder: Path, script: str) -> dict[str, str]:
    """Return an environment in which `svc` is this shell script."""
    program = folder / "svc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("file", "run_id"), [("train-cronjob.yaml", ""), ("batch/search-job.yaml", " --run-id 2026-01-31")]
)
@pytest.mark.parametrize(("ended", "seen"), [(0, 0), (9, 0), (4, 4), (6, 6)])
def test_a_refused_model_does_not_fail_the_job(ended: int, seen: int, file: str, run_id: str, tmp_path: Path) -> None:
    """Exit code 9 becomes 0, and others stay. The job passes recipe, flag and run id to `svc train`."""
    environment = fake_svc(tmp_path, f'echo "$*"; exit {ended}')
    done = subprocess.run(job_command(file), env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (seen, f"train /etc/svc/recipes/books.yaml --fail-on-busy{run_id}\n")


@pytest.mark.parametrize(("hour", "flags"), [("03", ""), ("04", " --refit"), ("13", " --refit")])
def test_the_hourly_job_searches_once_a_day(hour: str, flags: str, tmp_path: Path) -> None:
    """The job searches after 03:00 UTC and refits in all other hours.

    Apart from that, its command is that of the daily job.
    """
    command = job_command("batch/refit-cronjob.yaml")
    assert [line for line in command[2].splitlines() if "refit" not in line] == [
        line for line in job_command()[2].splitlines() if "svc train" not in line
    ]
    environment = fake_svc(tmp_path, 'echo "$*"; exit 9')
    (tmp_path / "date").write_text(f"#!/bin/sh\necho {hour}\n")
    (tmp_path / "date").chmod(0o755)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"train /etc/svc/recipes/books.yaml --fail-on-busy{flags}\n")


def test_the_job_passes_a_signal_on(tmp_path: Path) -> None:
    """SIGTERM to the job reaches `svc train`, and the job ends with the exit code of the training."""
    marker = tmp_path / "signalled"
    waits = f"trap 'touch {marker}; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
    environment = fake_svc(tmp_path, waits)
    with subprocess.Popen(job_command(), env=environment, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.terminate()
        assert started.wait(timeout=60) == 143
    assert marker.exists()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("more", "file"), [({}, "train-cronjob.yaml"), ({"searchHour": 3}, "batch/refit-cronjob.yaml")]
)
def test_the_chart_starts_trainings_like_the_manifests(more: dict[str, Any], file: str) -> None:
    """The command equals that of the manifest, with a search hour and without."""
    schedule = {"recipe": "books", "schedule": "15 * * * *", **more}
    ((_, container),) = containers(
        rendered({"recipes": BOOKS, "train": {"schedules": [schedule]}})["CronJob", "shop-train-books"]
    )
    assert container["command"] == job_command(file)


@pytest.mark.integration
def test_the_chart_runs_the_command_of_the_manifest() -> None:
    search = {"recipe": "books", "runId": "2026-01-31"}
    ((_, container),) = containers(rendered({"recipes": BOOKS, "search": search})["Job", "shop-sign-2026-01-31"])
    assert container["command"] == job_command("batch/search-job.yaml")


def test_systemd_counts_a_refused_model_as_a_success() -> None:
    """Exit code 9 must not fail the unit, because operators would get used to failures."""
    assert "SuccessExitStatus=9" in (DEPLOY / "systemd" / "svc-train@.service").read_text().splitlines()


@pytest.mark.integration
@pytest.mark.parametrize("values", [{}, CHANGED_VALUES], ids=["defaults", "changed"])
def test_the_chart_renders_to_valid_resources(values: dict[str, Any]) -> None:
    """Helm renders the chart with default and changed values. All containers are hardened."""
    resources = rendered(values)
    kinds = {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    assert {kind for kind, _ in resources} == kinds | ({"CronJob", "Job"} if values else set())
    for document in resources.values():
        check_resource(document)
        for pod, container in containers(document):
            check_hardened(pod, container)
            assert container["image"].endswith(":test" if values else f":{__version__}")
            assert ("SVC_SIGNING_KEYS" in str(container)) is False
            assert ("/srv/svc" in str(container["volumeMounts"])) == bool(values)
            assert [name in pod for name in ("nodeSelector", "tolerations", "affinity")] == [bool(values)] * 3
    assert (("CronJob", "shop-train-films-1") in resources) == bool(values)


@pytest.mark.integration
def test_the_notes_name_jobs_and_secrets() -> None:
    """The notes name the jobs of the schedules, and the secrets of a search and of exports only with these."""
    helm = pytest.importorskip("helm_python", reason="Helm's library has no wheel here", exc_type=ImportError)
    with helm.Chart.load(str(CHART)) as chart:
        notes = [
            chart.render({**CHANGED_VALUES, **more}, name="shop", namespace="test")["svc/templates/NOTES.txt"]
            for more in ({}, {"train": {"schedules": []}, "search": {}, "export": {}})
        ]
    assert ["Train now" in text for text in notes] == [True, False]
    assert "kubectl create job --from=cronjob/shop-train-books first-books -n test\n" in notes[0]
    assert "--from" not in notes[1]
    for secret in ("svc-search-data", "svc-export-keys"):
        assert [f"\n  secret {secret}: " in text for text in notes] == [True, False]


@pytest.mark.integration
def test_values_of_the_chart_add_ingress_account_autoscaling_and_monitor() -> None:
    """By default the chart has none of them. The monitor scrapes metrics with a key."""
    resources = rendered(EXPOSED_VALUES)
    for document in resources.values():
        check_resource(document)
        for pod, _ in containers(document):
            assert pod["serviceAccountName"] == "books"
            assert pod["imagePullSecrets"] == [{"name": "registry"}]
    kinds = {"Ingress", "ServiceAccount", "HorizontalPodAutoscaler", "ServiceMonitor"}
    by_default = {kind for kind, _ in rendered({})}
    assert {kind for kind, _ in resources} == (by_default | kinds) - {"NetworkPolicy"}
    server = resources["Deployment", "shop"]
    assert "replicas" not in server["spec"]
    assert server["spec"]["template"]["metadata"]["annotations"] == {"example.org/team": "shop"}
    ((pod, container),) = containers(server)
    assert pod["topologySpreadConstraints"] == EXPOSED_VALUES["serve"]["topologySpreadConstraints"]
    assert container["image"] == f"registry.example.org/svc@sha256:{'a' * 64}"
    probe = container["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 60
    (endpoint,) = resources["ServiceMonitor", "shop"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "scraper", "key": "key"}


@pytest.mark.integration
def test_annotations_name_the_metrics_port_without_a_key() -> None:
    """A Prometheus that finds its targets by annotations sends no key."""
    manifests = documents((DEPLOY / "kubernetes" / "serve.yaml").read_text())
    served = [rendered({})["Deployment", "shop"], next(m for m in manifests if m["kind"] == "Deployment")]
    for document in served:
        ((_, container),) = containers(document)
        annotations = document["spec"]["template"]["metadata"]["annotations"]
        environment = {one["name"]: one["value"] for one in container["env"]}
        assert container["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", "5"]}}}
        assert document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == Settings().drain_s + 10
        assert annotations["prometheus.io/port"] == environment["SVC_METRICS_PORT"]
        assert annotations["prometheus.io/path"] == "/metrics"
        assert int(environment["SVC_METRICS_PORT"]) in [port["containerPort"] for port in container["ports"]]


@pytest.mark.integration
def test_only_the_scraper_reaches_the_metrics_without_a_key() -> None:
    """The network policies of chart and manifest admit everyone to the HTTP port only."""
    manifests = documents((DEPLOY / "kubernetes" / "serve.yaml").read_text())
    policies = [rendered({})["NetworkPolicy", "shop"], next(m for m in manifests if m["kind"] == "NetworkPolicy")]
    for policy in policies:
        check_resource(policy)
        assert [(rule["ports"], "from" in rule) for rule in policy["spec"]["ingress"]] == [
            ([{"port": "http"}], False),
            ([{"port": "metrics"}], True),
        ]
    closed = rendered({"metrics": {"allowFrom": []}})["NetworkPolicy", "shop"]
    assert [rule["ports"] for rule in closed["spec"]["ingress"]] == [[{"port": "http"}]]


@pytest.mark.integration
def test_recipes_of_the_chart_are_those_of_the_values_alone() -> None:
    """Helm merges maps, so an example recipe in the defaults would be served too."""
    assert "data" not in rendered({})["ConfigMap", "shop-recipes"]
    assert rendered({"recipes": BOOKS})["ConfigMap", "shop-recipes"]["data"] == BOOKS


@pytest.mark.integration
@pytest.mark.parametrize("release", ["shop", "a-release-name-of-as-many-as-53-characters-is-allowed"])
def test_every_schedule_has_a_job_of_its_own(release: str) -> None:
    """Names of jobs are distinct and within Kubernetes' limits, also for long or similar names of recipes."""
    schedules = [{"recipe": "books", "schedule": f"{minute} 3 * * *"} for minute in range(3)]
    schedules += [{"recipe": name, "schedule": "@daily"} for name in ("BOOKS", "a_b", "a-b", "x" * 64)]
    exports = [{**one, "output": "s3://x/a.csv", "shards": 100_000} for one in schedules]
    recipes = {f"{one['recipe']}.yaml": "name: x\n" for one in schedules}
    search = {"recipe": "books", "runId": "r" * 32}
    values = {"recipes": recipes, "train": {"schedules": schedules}, "export": {"schedules": exports}, "search": search}
    resources = rendered(values, release)
    names = {"train": 52, "export": 46}
    for step, longest in names.items():
        made = [name for kind, name in resources if kind == "CronJob" and f"svc-{step}" in str(resources[kind, name])]
        assert len(made) == len(schedules)
        assert max(map(len, made)) <= longest
    assert max(len(name) for kind, name in resources if kind == "Job") <= 63
    assert (("CronJob", "shop-train-books") in resources) == (release == "shop")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"train": {"schedules": [{"recipe": "books", "schedule": "every night"}]}}, "schedule"),
        ({"train": {"schedules": [{"recipe": "books", "schedule": "@hourly", "searchHour": 24}]}}, "searchHour"),
        ({"train": {"schedules": [{"recipe": "books", "schedule": "@daily"}] * 2}}, "schedules"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"metrics": {"port": 8080}}, "port"),
        ({"serviceAccount": {"create": True}}, "serviceAccount.name"),
        ({"metrics": {"port": 0, "serviceMonitor": {"enabled": True}}}, "keySecret.name"),
        ({"serve": {"replicas": 0}}, "replicas"),
        ({"serve": {"env": {"SVC_API_KEYS": "in plain sight"}}}, "SVC_API_KEYS"),
        ({"recipes": {"books.yml": "name: books"}}, "books.yml"),
        ({"trian": {}}, "trian"),
        ({"search": {"recipe": "films", "runId": "1"}}, "films.yaml"),
        ({"search": {"runId": "Jan_31"}}, "runId"),
        ({"export": {"schedules": [{"recipe": "books", "schedule": "@daily", "output": "x.txt"}]}}, "output"),
        ({"export": {"schedules": [{"recipe": "films", "schedule": "@daily", "output": "x.csv"}]}}, "films.yaml"),
        ({"train": {"schedules": [{"recipe": "films", "schedule": "@daily"}]}}, "films.yaml"),
        ({"serve": {"workers": 65}}, "workers"),
    ],
)
def test_the_chart_refuses_values_that_cannot_work(values: dict[str, Any], text: str) -> None:
    """The error of Helm names the value or the missing recipe."""
    helm = pytest.importorskip("helm_python", exc_type=ImportError)
    with pytest.raises(helm.HelmError, match=text):
        rendered(values)


@pytest.mark.integration
def test_the_chart_mounts_the_policies_of_keys() -> None:
    """The server can read the policies, and sees changes of the mounted folder. By default nothing is mounted."""
    resources = rendered(EXPOSED_VALUES)
    found = parse_policies(
        resources["ConfigMap", "shop-key-policies"]["data"]["policies.yaml"].encode(), "policies.yaml"
    )
    assert found["shop"].may_ask("books-2")
    assert not found["shop"].may_ask("films")
    container = resources["Deployment", "shop"]["spec"]["template"]["spec"]["containers"][0]
    (path,) = (one["value"] for one in container["env"] if one["name"] == "SVC_API_KEY_POLICIES")
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "key-policies")
    assert path == f"{mount['mountPath']}/policies.yaml"
    assert "subPath" not in mount
    assert "key-policies" not in json.dumps(list(rendered({}).values()))


@pytest.mark.integration
def test_the_chart_sets_the_number_of_workers() -> None:
    """The value becomes SVC_WORKERS. By default the variable is not set."""
    (container,) = rendered(EXPOSED_VALUES)["Deployment", "shop"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "SVC_WORKERS", "value": "4"} in container["env"]
    assert "SVC_WORKERS" not in json.dumps(list(rendered({}).values()))


@pytest.mark.integration
def test_the_chart_is_linted_and_carries_the_version() -> None:
    """`helm lint` finds no error or warning, and `appVersion` is svc's version."""
    helm = pytest.importorskip("helm_python", exc_type=ImportError)
    found = helm.lint(str(CHART))
    assert (found["errors"], [m for m in found["messages"] if m["severity"] > 1]) == ([], [])
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_grace_periods_are_longer_than_the_drain() -> None:
    """The grace period is five seconds longer than the drain, and ten in Kubernetes because of `preStop`."""
    grace = round(Settings().drain_s) + 5
    assert f"TimeoutStopSec={grace}" in (DEPLOY / "systemd" / "svc-serve.service").read_text()
    assert f"stop_grace_period: {grace}s" in (DEPLOY / "docker" / "compose.yaml").read_text()
    assert f"terminationGracePeriodSeconds: {grace + 5}" in (DEPLOY / "kubernetes" / "serve.yaml").read_text()
    assert f"drainSeconds: {grace - 5}" in (CHART / "values.yaml").read_text()


def recipes_shipped() -> dict[str, str]:
    """Return the recipes inside the Kubernetes files and their how-to page, by file and name."""
    example = re.search(r"^recipes: \{\}\n((?:#.*\n)+)", (CHART / "values.yaml").read_text(), re.MULTILINE)
    assert example is not None
    found = {"values.yaml": yaml.safe_load(re.sub("^# ", "", example[1], flags=re.MULTILINE))}
    manifests = documents((DEPLOY / "kubernetes" / "serve.yaml").read_text())
    found["serve.yaml"] = next(manifest["data"] for manifest in manifests if manifest["kind"] == "ConfigMap")
    shown = next(b.text for b in blocks(ROOT / "docs/howto/production.md") if b.file == "books-values.yaml")
    found["production.md"] = yaml.safe_load(shown)["recipes"]
    return {f"{where}:{file}": text for where, files in found.items() for file, text in files.items()}


@pytest.mark.parametrize("where", recipes_shipped())
def test_recipes_inside_manifests_are_recipes(where: str, tmp_path: Path) -> None:
    """Every recipe in a manifest, in the chart's values and on their page can be loaded."""
    recipe = tmp_path / where.partition(":")[2]
    recipe.write_text(recipes_shipped()[where])
    assert load_recipe(recipe, {}, settings=Settings()).recipe.name == recipe.stem


@pytest.mark.integration
def test_the_values_of_the_page_render() -> None:
    """Helm accepts the values that docs/howto/production.md shows."""
    shown = next(b.text for b in blocks(ROOT / "docs/howto/production.md") if b.file == "books-values.yaml")
    resources = rendered(yaml.safe_load(shown))
    for document in resources.values():
        check_resource(document)
    assert resources["Deployment", "shop"]["spec"]["replicas"] == 3


@pytest.mark.integration
def test_the_compose_file_holds_to_the_specification() -> None:
    """A parser of the Compose specification accepts the file and refuses unknown keys."""
    from compose_spec import PyCompose

    path = DEPLOY / "docker" / "compose.yaml"
    assert sorted(PyCompose.from_yaml(path.read_text()).service_names()) == ["serve", "train"]
    with pytest.raises(ValueError, match="readonly"):
        PyCompose.from_yaml(path.read_text().replace("read_only:", "readonly:"))
    for service in yaml.safe_load(path.read_text())["services"].values():
        assert service["read_only"] is True
        assert (path.parent / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()


@pytest.mark.integration
def test_the_dockerfile_is_linted() -> None:
    """hadolint reports nothing."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_gets_the_locked_files() -> None:
    """Each line of requirements.txt has a version of uv.lock, and only hashes of that version."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    locked = {(package["name"], package.get("version")): package for package in lock["package"]}
    text = (DEPLOY / "docker" / "requirements.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) > 50
    for line in lines:
        name, version = line.split()[0].split("==")
        package = locked[name.partition("[")[0], version]
        files = (*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ()))
        hashes = set(re.findall(r"--hash=(sha256:[0-9a-f]{64})", line))
        assert hashes, line
        assert hashes <= {file["hash"] for file in files}


def dockerfile_steps(text: str) -> list[tuple[str, str]]:
    """Return instruction and arguments of every line except comments."""
    lines = [line for line in text.replace("\\\n", "").splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2]) for line in lines]


@pytest.mark.integration
def test_the_steps_of_the_dockerfile_work(tmp_path: Path) -> None:
    """COPY and RUN of the first stage work in a scratch folder, and the program that they install starts.

    Dependencies come from the environment of the tests. With SVC_TEST_DOCKERFILE=full they are installed as in the
    image.
    """
    steps = dockerfile_steps(DOCKERFILE.read_text())
    names = [step for step, _ in steps]
    first_stage = steps[: names.index("FROM", names.index("FROM") + 1)]
    for instruction, rest in first_stage:
        if instruction == "COPY":
            *sources, target = shlex.split(rest)
            copy_into(tmp_path / target, sources)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SVC_", "PYTHON"))}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    full = os.environ.get("SVC_TEST_DOCKERFILE") == "full"
    if not full:
        environment["PYTHONPATH"] = sysconfig.get_path("purelib")
    for instruction, rest in first_stage:
        if instruction == "RUN":
            commands = [one for one in rest.split(" && ") if full or "--require-hashes" not in one]
            command = " && ".join(commands).replace("/opt/svc", f"{tmp_path}/opt")
            subprocess.run(["sh", "-ec", command], cwd=tmp_path, env=environment, check=True, timeout=600)
    program = next(rest for instruction, rest in steps if instruction == "ENTRYPOINT")
    started = [f"{tmp_path}/opt/bin/{yaml.safe_load(program)[0]}", "--version"]
    shown = subprocess.run(started, cwd="/", env=environment, capture_output=True, text=True, check=True).stdout
    assert shown == f"svc {__version__}\n"


def read_only_root_works() -> bool:
    """Return whether mount namespaces work here. They need root, and a container may forbid them."""
    return (
        shutil.which("unshare") is not None and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
    )


@pytest.mark.integration
@pytest.mark.skipif(not read_only_root_works(), reason="no mount namespaces here")
def test_nothing_is_written_outside_the_output(tmp_path: Path) -> None:
    """A training and a server work with a read-only root, as the deployment files mount it."""
    shell = Shell(tmp_path, fresh=True)
    make_shop(tmp_path)
    script = f"""unshare -m bash -e <<'END'
mount --make-rprivate / && mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro /
if touch /written 2>/dev/null; then exit 77; fi
cd {tmp_path}
svc train recipes/books.yaml --quiet
svc serve --recipes recipes &
{WAIT}
kill -TERM $!
wait $!
END"""
    done = shell.run(script, SVC_SIGNING_KEYS=SIGNING_KEYS, HOME="/nonexistent", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr


def copy_into(target: Path, names: list[str]) -> None:
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)


def test_the_build_context_has_what_the_dockerfile_copies() -> None:
    """The ignore file admits only the paths that the Dockerfile copies."""
    steps = dockerfile_steps(DOCKERFILE.read_text())
    copied = {name for step, rest in steps if step == "COPY" and "--from" not in rest for name in rest.split()[:-1]}
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split()
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    assert ignore[0] == "*"


def test_the_image_is_not_root_and_knows_its_health() -> None:
    """The image's user is a positive number, which Kubernetes can check. Its health check compiles."""
    steps = dict(dockerfile_steps(DOCKERFILE.read_text()))
    assert int(steps["USER"]) > 0
    command = yaml.safe_load(steps["HEALTHCHECK"].partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    compile(command[2], "HEALTHCHECK", "exec")


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """`systemd-analyze verify` reports nothing about the units."""
    units = []
    for path in (DEPLOY / "systemd").iterdir():
        unit = tmp_path / path.name.replace("@", "@books")
        unit.write_text(path.read_text().replace("/opt/svc/bin/svc", "/bin/true"))
        units.append(str(unit))
    command = ["systemd-analyze", "verify", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if any(Path(unit).name in line for unit in units)]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_units_expose_little(tmp_path: Path) -> None:
    """`systemd-analyze security` rates the exposure of each service at 4.0 of 10 or less."""
    for path in (DEPLOY / "systemd").glob("*.service"):
        unit = tmp_path / path.name.replace("@", "@books")
        unit.write_text(path.read_text())
        command = ["systemd-analyze", "security", "--offline=true", "--threshold=40", str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout.splitlines()[-1]


@pytest.mark.parametrize("unit", ["svc-train@", "svc-refit@"])
def test_trainings_share_a_folder_of_locks(unit: str) -> None:
    """Both training units have the same folder of locks under /run, which remains after each run."""
    lines = (DEPLOY / "systemd" / f"{unit}.service").read_text().splitlines()
    wanted = ["Environment=SVC_LOCK_DIR=/run/svc-lock", "RuntimeDirectory=svc-lock", "RuntimeDirectoryPreserve=yes"]
    assert set(wanted) <= set(lines)


def test_the_single_file_removes_unused_unpacked_versions(tmp_path: Path) -> None:
    """The first start removes old versions and the remains of a killed start, but no version that runs."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    shutil.copy(shutil.which("sleep") or "", folder / "svc")
    pack = runpy.run_path(str(DEPLOY / "onefile" / "build.py"))["pack"]
    pack(folder, tmp_path / "one")
    cache = tmp_path / "cache" / "svc-onefile"
    for name in ("old", "running", ".new-killed", ".new-at-work"):
        shutil.copytree(folder, cache / name)
    os.utime(cache / ".new-killed", (0, 0))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen([cache / "running" / "svc", "600"]) as running:
        subprocess.run([tmp_path / "one", "0"], env=environment, check=True, timeout=60)
        running.kill()
    left = {path.name for path in cache.iterdir()}
    assert {"running", ".new-at-work"} < left
    assert len(left) == 3, left


def test_units_use_existing_commands_and_options() -> None:
    """Each ExecStart has a command of svc and only options of that command."""
    from typer.main import get_command

    from svc.cli.main import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for path in (DEPLOY / "systemd").glob("*.service"):
        found = re.search(r"^ExecStart=/opt/svc/bin/svc (\w+) (.*)$", path.read_text(), re.MULTILINE)
        assert found, path
        flags = {flag for p in commands[found[1]].params for flag in p.opts}
        assert {word for word in found[2].split() if word.startswith("--")} <= flags
