"""The fenced blocks of the documentation, and a shell in which the commands of a page run.

A `bash` or `python` block runs unless it has a title, such as "Needs root". A block whose title is a path is the
content of that file. The words "in the demo's folder (`A`, `B`)" tell the reader to run A and B, and "while `C` runs"
behind them to start C.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from svc.cli.demo import prepare
from tests.forked import program

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
OPENING = re.compile(r"demo's\s+folder\s+\(([^)]*)\)(?:,?\s+while\s+`([^`]+)`\s+runs)?")
EACH_RECIPE = 'for recipe in recipes/*.yaml; do svc train "$recipe" --quiet; done'
TITLE = re.compile(r'title="([^"]+)"')
PORT = re.compile(r"\b(8080|8081|8082|8765)\b")
FOREGROUND = re.compile(r"^(svc serve [^&\n]*)$", re.MULTILINE)
SIGNING_KEYS = "docs:" + "5a" * 32
RECIPE = """\
name: books
source: {type: csv, path: ../data/purchases.csv}
schema: {user_column: user_id, item_column: item_id}
training: {algorithms: [TopPop], n_trials: 1, split: {heldout_ratio: 0.2}}
output: {path: ../artifacts/books.svc, versioning: append_sha}
"""
AS_CRON = 'env -i HOME="$HOME" LOGNAME=svc SHELL=/bin/sh PATH=/usr/bin:/bin'
SMALLER = "sed -i 's/n_trials: .*/n_trials: 2/' recipes/*.yaml; sed -i '/^u[1-9]\\|^u0[5-9]/d' data/purchases.csv"
"""Trials and readers of the demo's shop that are enough for its commands: an eighth of both."""
WAIT = "curl -sS --retry 100 --retry-delay 1 --retry-all-errors -o /dev/null http://127.0.0.1:8080/v1/health/ready"


class Block(NamedTuple):
    """One fenced block. `title` is "" if the block has none."""

    language: str
    title: str
    text: str

    @property
    def runs(self) -> bool:
        return self.language in ("bash", "python") and not self.title

    @property
    def file(self) -> str:
        """The path of the file whose content the block is, or ""."""
        return self.title if re.fullmatch(r"[\w./-]+\.\w+", self.title) else ""


def _opening(words: re.Match[str]) -> str:
    """Return a sentence that sends the reader to the demo's folder, and a block with its commands."""
    commands = [
        EACH_RECIPE if command == "svc train" else command.replace("\n", " ")
        for command in [*re.findall(r"`([^`]+)`", words[1]), words[2]]
        if command
    ]
    return "\n".join([words[0], "```bash", *commands, "```", ""])


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order, without the indentation of a list item."""
    found = []
    for indent, language, rest, text in FENCE.findall(OPENING.sub(_opening, page.read_text(encoding="utf-8"))):
        title = TITLE.search(rest)
        plain = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        found.append(Block(language, title[1] if title else "", plain))
    return found


def cron_lines(block: Block) -> list[tuple[str, str]]:
    """Return schedule and command of each line of a file for /etc/cron.d."""
    lines = [line.split(None, 6) for line in block.text.splitlines()]
    return [(" ".join(line[:5]), line[6]) for line in lines]


def free_ports(names: Sequence[str]) -> dict[str, str]:
    """Return a different free port for each of `names`."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    try:
        return {name: str(probe.getsockname()[1]) for name, probe in zip(names, probes, strict=True)}
    finally:
        for probe in probes:
            probe.close()


@dataclass
class Shell:
    """A folder with data and a recipe, and an environment in which `svc` and `python` are this project's.

    `svc` runs in a process forked from one that has imported its libraries, or in a new interpreter if it is `fresh`.
    """

    folder: Path
    fresh: bool = False

    def environment(self) -> dict[str, str]:
        """Return the environment, without settings of the machine. `pip install` reaches a scratch environment only."""
        scratch = self.folder / ".venv"
        if not scratch.exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", scratch], check=True)
            packages = next(scratch.glob("lib/python*/site-packages"))
            inherited = sysconfig.get_path("purelib")
            (packages / "inherited.pth").write_text(f"import site; site.addsitedir({inherited!r})\n")
        launcher = scratch / "bin" / "svc"
        if self.fresh:
            launcher.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{scratch}/bin/python" -m svc "$@"\n')
            launcher.chmod(0o755)
        else:
            shutil.copy(program(), launcher)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SVC_", "PYTHON"))}
        return kept | {
            "PATH": f"{scratch}/bin:{kept['PATH']}",
            "VIRTUAL_ENV": str(scratch),
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def make_host(self) -> None:
        """Write the files of a host that trains on a schedule, and a copy of the project's `docs`."""
        for name in ("etc/svc/recipes", "var/log/svc"):
            (self.folder / name).mkdir(parents=True)
        signing_keys = make_shop(self.folder / "srv")["SVC_SIGNING_KEYS"]
        recipe = (self.folder / "srv/recipes/books.yaml").read_text()
        (self.folder / "etc/svc/recipes/books.yaml").write_text(recipe.replace("../", f"{self.folder}/srv/"))
        (self.folder / "etc/svc/train.env").write_text(f"SVC_SIGNING_KEYS={signing_keys}\n")
        (self.folder / "docs").symlink_to(ROOT / "docs")

    def run(self, script: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run the script in a shell that stops at the first failure, and end all processes that it started."""
        ports = free_ports(("8080", "8081", "8082", "8765"))
        script = PORT.sub(lambda match: ports[match[1]], script)
        script = re.sub(r"(?<![\w.])/(etc|var/log)/svc", rf"{self.folder}/\1/svc", script)
        script = script.replace("/opt/svc/bin/", f"{self.folder}/.venv/bin/")
        head = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"
        environment = self.environment() | {"SVC_PORT": ports["8080"]} | extra
        command = ["bash", "-c", head + script]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=240
        )


def make_shop(folder: Path) -> dict[str, str]:
    """Write the folder of `svc demo` with less to train on. Return its keys."""
    keys = prepare(folder)
    subprocess.run(SMALLER, shell=True, cwd=folder, check=True)
    return keys


def script_of(page: Path) -> str:
    """Return a script that does in order all that a page describes.

    It writes the files, runs the commands, and starts servers in the background. The Python blocks are one program,
    which runs in place of the last one.
    """
    parts, shown = [], blocks(page)
    python = [block for block in shown if block.language == "python" and block.runs]
    for block in shown:
        if block.file:
            parts.append(
                f"mkdir -p $(dirname {block.file})\ncat > {block.file} <<'END_OF_FILE'\n{block.text}END_OF_FILE"
            )
        elif block in python:
            if block is python[-1]:
                program = "\n".join(part.text for part in python)
                parts.append(f"python - <<'END_OF_PROGRAM'\n{program}END_OF_PROGRAM")
        elif block.runs:
            parts.append(FOREGROUND.sub(lambda match: f"{match[1]} &\n{WAIT}", block.text))
        elif block.language == "cron":
            parts += [f"{AS_CRON} sh -c '{command}'" for _, command in cron_lines(block)]
    return "\n".join(parts)
