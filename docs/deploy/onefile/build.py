"""Builds svc as one executable that needs no Python where it runs: `python docs/deploy/onefile/build.py dist/svc`.

PyInstaller gathers the interpreter and the packages in a folder; the folder becomes the tail of a small shell script.
PyInstaller's own single file unpacks itself at each start, which takes seconds; this one does it once.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# Read at run time through importlib.metadata, or imported by name.
VERSIONS_OF = ("svc-recommender", "irspack", "optuna", "scikit-learn", "numpy")
BY_NAME = ("svc", "sqlalchemy.dialects", "optuna.storages", "fsspec.implementations", "s3fs", "gcsfs", "adlfs")
WITH_DATA = ("svc", "irspack", "optuna")
# The process that the workers of `svc serve --workers` are copied from is started as a module, like with an interpreter.
ENTRY = """\
import runpy, sys

if sys.argv[1:3] == ["-P", "-m"]:
    del sys.argv[1:3]
    runpy.run_module(sys.argv.pop(1), run_name="__main__")
else:
    from svc.cli.main import main

    main()
"""
LEFT_OUT = ("tkinter", "IPython", "pytest", "pip", "setuptools")


def gather(work: Path) -> Path:
    """The folder that PyInstaller makes: the program `svc` and all that it needs."""
    entry = work / "entry.py"
    entry.write_text(ENTRY)
    options = ["--noconfirm", "--onedir", "--name=svc", "--log-level=ERROR"]
    options += [f"--distpath={work / 'dist'}", f"--workpath={work / 'build'}", f"--specpath={work}"]
    options += [f"--copy-metadata={name}" for name in VERSIONS_OF]
    options += [f"--collect-submodules={name}" for name in BY_NAME]
    options += [f"--collect-data={name}" for name in WITH_DATA]
    options += [f"--exclude-module={name}" for name in LEFT_OUT]
    subprocess.run([sys.executable, "-m", "PyInstaller", *options, entry], check=True)
    return work / "dist" / "svc"


def pack(folder: Path, target: Path) -> None:
    """`head.sh` and behind it the folder as a compressed archive, executable."""
    archive = folder.with_suffix(".tgz")
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=path.name)
    payload = archive.read_bytes()
    head = (HERE / "head.sh").read_text()
    head = head.replace("@DIGEST@", hashlib.sha256(payload).hexdigest()[:16])
    head = head.replace("@LINES@", str(head.count("\n") + 1))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(head.encode() + payload)
    target.chmod(0o755)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        pack(gather(Path(scratch)), Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {Path(sys.argv[1]).stat().st_size / 1e6:.0f} MB")
