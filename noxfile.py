"""Every check of the project: `nox` runs the tests, `nox -l` lists the rest."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

GROUPS = nox.project.load_toml("pyproject.toml")
PYTEST = ("python", "-m", "pytest", "--dist=worksteal")
ENVIRONMENT = {
    # Lets pytest keep its compiled test modules; else each worker of each session compiles them all anew.
    "PYTHONDONTWRITEBYTECODE": None,
    # Workers keep all cores busy. With two threads an operation, which wait for each other, the pages of the docs
    # and the shared searches take 276 instead of 199 s of processor time on two cores.
    "OPENBLAS_NUM_THREADS": "1",
}


def _install(session: nox.Session, *groups: str, extras: str = "metrics", compiled: bool = True) -> None:
    """Install what is not there yet: a session begins seconds sooner while pyproject.toml and the version stay.

    `compiled` costs 22 s of a processor. It pays where tests start many processes, each of which would compile the same
    modules.
    """
    wanted = [f".[{extras}]", *nox.project.dependency_groups(GROUPS, *groups)]
    sources = [Path(name).read_text(encoding="utf-8") for name in ("pyproject.toml", "svc/__init__.py")]
    with _absent(Path(session.virtualenv.location), *wanted, *sources) as absent:
        if absent:
            session.install("-e", *wanted, env={"UV_COMPILE_BYTECODE": str(int(compiled))})
    session.run("python", "-m", "compileall", "-q", "svc", silent=True)


@contextmanager
def _absent(folder: Path, *wanted: str) -> Iterator[bool]:
    """Yield whether `folder` lacks `wanted`, and record it as installed when the block ends without an error."""
    record, state = folder / "installed.json", json.dumps(wanted)
    yield not record.exists() or record.read_text(encoding="utf-8") != state
    record.write_text(state, encoding="utf-8")


@nox.session
def tests(session: nox.Session) -> None:
    """The fast tests: no process of their own, no load, no network."""
    _install(session, "test", "bprfm", compiled=False)
    few = "-k" in session.posargs  # starting workers takes longer than most selections of tests
    workers = () if few else ("--numprocesses=auto", "--maxprocesses=4")
    session.run(*PYTEST, *workers, "-m", "not integration and not system", *session.posargs, env=ENVIRONMENT)
    logging.getLogger("nox").setLevel(logging.WARNING)  # pytest's closing line is the last one


@nox.session
def system(session: nox.Session) -> None:
    """Tests that start processes of svc or simulate load; like the fast tests they need nothing but Python."""
    _install(session, "test")
    workers = "--numprocesses=4"  # also on two cores: many of these tests wait for a poll or a timeout
    session.run(*PYTEST, workers, "-m", "system and not integration", *session.posargs, env=ENVIRONMENT)


@nox.session
def integration(session: nox.Session) -> None:
    """Against real servers: databases at SVC_TEST_POSTGRES_URL and SVC_TEST_MYSQL_URL, object stores, a browser."""
    extras = "metrics,postgres,mysql,s3,gcs,azure,bigquery,delta,iceberg,duckdb,report"
    _install(session, "test", "integration", extras=extras)
    environment = {
        **ENVIRONMENT,
        "SVC_TEST_AZURITE": os.environ.get("SVC_TEST_AZURITE") or _azurite(session),
        "SVC_TEST_CLIENTS": os.environ.get("SVC_TEST_CLIENTS") or _generators(session),
    }
    workers = "--numprocesses=4"  # also on two cores: most of these tests wait for a store, a poll or a timeout
    session.run(*PYTEST, workers, "-m", "integration", *session.posargs, env=environment)


def _azurite(session: nox.Session) -> str | None:
    """Azure's own emulator, from npm; without npm its tests are skipped."""
    if shutil.which("npm") is None:
        return None
    folder = Path(session.create_tmp()).resolve() / "azurite"  # some tests run in other folders
    _npm(session, folder, "azurite@3.37.0")
    return str(folder / "node_modules" / ".bin" / "azurite-blob")


def _npm(session: nox.Session, folder: Path, *packages: str) -> None:
    with _absent(folder, *packages) as absent:
        if absent:
            command = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages)
            session.run_install(*command, external=True)


def _generators(session: nox.Session) -> str | None:
    """Generators of API clients in an environment of their own, from npm and PyPI; without npm no tests of them."""
    if shutil.which("npm") is None:
        return None
    folder = Path(session.create_tmp()).resolve() / "generators"  # the tests run in folders of their own
    javascript = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "orval@7.13.2", "@hey-api/openapi-ts@0.95.0")
    _npm(session, folder, *javascript, "typescript@5.9.3")
    python = ("openapi-python-client==0.29.1", "datamodel-code-generator==0.89.0", "mypy==2.4.1")
    with _absent(folder / "python", *python) as absent:
        if absent:
            session.run_install("python", "-m", "venv", str(folder / "python"))
            pip = (str(folder / "python" / "bin" / "python"), "-m", "pip", "install", "-q")
            session.run_install(*pip, *python, external=True)
    return str(folder)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Coverage-guided fuzzing of whatever reads outside bytes; `nox -s fuzz -- 600`: ten minutes each."""
    _install(session, "test", "fuzz")
    for target in ("artifact", "recipe", "body", "request"):
        session.run("python", "-m", "tests.fuzz", target, *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Every call fails once, then ten minutes at random; `nox -s chaos -- 60 7`: a minute, from seed 7 on."""
    _install(session, "test")
    every_call = {**ENVIRONMENT, "SVC_TEST_FAULT_STRIDE": "1"}
    session.run(*PYTEST, "--numprocesses=2", "-rP", "tests/faults", "--timeout=1200", env=every_call)
    session.run("python", "-m", "tests.faults.chaos", *(session.posargs or ["600"]))


@nox.session
def mutation(session: nox.Session) -> None:
    """Faults planted by lot: which do the tests notice? `nox -s mutation -- 7 200`: 200 of them, from seed 7."""
    _install(session, "test", "mutation")
    folder = Path(session.create_tmp()).resolve() / "mutation"
    session.run("python", "-m", "tests.mutation", *(session.posargs or ("1", "200")), str(folder), env=ENVIRONMENT)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and types."""
    _install(session, "test", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
    examples = str(Path(session.create_tmp()) / "examples")
    shutil.rmtree(examples, ignore_errors=True)
    session.run("python", "-m", "tests.project.python_examples", examples)
    session.run("mypy", examples)
    session.run("basedpyright", "--level", "error", examples)


@nox.session
def audit(session: nox.Session) -> None:
    """The locked packages against published advisories; what could not be looked up is a failure that says so."""
    session.install("pip-audit>=2.10,<3", "uv>=0.9")
    session.run("uv", "lock", "--check")
    folder = Path(session.create_tmp())
    locked, advisories = folder / "locked.txt", folder / "audit.json"
    advisories.unlink(missing_ok=True)
    what = ["--frozen", "--all-extras", "--no-default-groups", "--no-emit-project", "--output-file", str(locked)]
    session.run("uv", "export", "--quiet", *what, silent=True)
    how = ["--disable-pip", "--require-hashes", "--progress-spinner", "off", *session.posargs]
    output = ["--format", "json", "--output", str(advisories)]
    session.run("pip-audit", "--requirement", str(locked), *how, *output, success_codes=[0, 1], silent=True)
    if not advisories.exists():
        session.error("the advisories could not be reached: nothing was audited")
    _require_no_advisory(session, json.loads(advisories.read_text())["dependencies"])


def _require_no_advisory(session: nox.Session, audited: list[dict[str, Any]]) -> None:
    skipped = [package["name"] for package in audited if "skip_reason" in package]
    if skipped:
        session.error(
            f"{len(skipped)} of {len(audited)} packages could not be audited, such as {skipped[0]}: the advisories "
            "were not reached; `nox -s audit -- --vulnerability-service osv` asks elsewhere"
        )
    faulty = [
        f"{package['name']} {package['version']}: {', '.join(advisory['id'] for advisory in package['vulns'])}"
        for package in audited
        if package["vulns"]
    ]
    if faulty:
        session.error("; ".join(faulty))
    session.log(f"{len(audited)} packages audited, no known vulnerability")


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks, each a question of its own; `nox -s bench -- NAME...` runs some of them."""
    _install(session, "test", "bench")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site, strict: a broken link or anchor fails."""
    _install(session, "docs")
    session.run("zensical", "build", "--strict", "--clean", *session.posargs)
    session.run("python", "docs/markdown_pages.py", "site")


@nox.session
def onefile(session: nox.Session) -> None:
    """`dist/svc`, one executable that needs no Python where it runs; then keys, a training and an answer with it."""
    session.install(".[metrics,postgres,mysql,s3,gcs,azure]", "pyinstaller>=6.16,<7")
    session.run("python", "docs/deploy/onefile/build.py", "dist/svc")
    session.run("bash", "docs/deploy/onefile/smoke.sh", "dist/svc", external=True)
