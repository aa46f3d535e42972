"""Dependencies have bounded versions, and the lock file has only public, hashed packages."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from svc import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))


def declared() -> Iterator[tuple[str, Requirement]]:
    """Yield every requirement with its extra, or with "" if it needs none."""
    extras = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    yield from ((extra, Requirement(text)) for extra, texts in extras.items() if extra != "all" for text in texts)


def test_ranges_end_where_the_next_release_may_break() -> None:
    """Only packages that docs/dependencies.md lists with a reason have no upper bound."""
    endless = {one.name for _, one in declared() if "<" not in str(one.specifier)}
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    reasons = page.partition("## Without an upper end")[2].partition("\n## ")[0]
    assert endless == set(re.findall(r"^\| `([a-z0-9-]+)`", reasons, re.MULTILINE))


def test_the_lock_fits_the_declared_ranges() -> None:
    """uv.lock repeats the requirements of pyproject.toml. `uv lock` updates it."""
    (svc,) = (package for package in LOCK["package"] if package["name"] == DISTRIBUTION)
    locked = {
        (re.sub(r"extra == '(\w+)'", r"\1", one.get("marker", "")), one["name"], _ranges(one.get("specifier", "")))
        for one in svc["metadata"]["requires-dist"]
    }
    wanted = {(extra, canonicalize_name(one.name), _ranges(str(one.specifier))) for extra, one in declared()}
    assert {one for one in locked if one[0] != "all"} == wanted, "run `uv lock`"


def _ranges(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - {""}


def files() -> Iterable[dict[str, Any]]:
    for package in LOCK["package"]:
        yield from (*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ()))


@pytest.mark.parametrize("key", ["url", "hash"])
def test_every_locked_file_is_public_and_hashed(key: str) -> None:
    """All files come from the public package index and have a sha256."""
    form = {"url": "https://files.pythonhosted.org/", "hash": "sha256:"}[key]
    assert [one for one in files() if not one.get(key, "").startswith(form)] == []
    sources = {tuple(package["source"].items()) for package in LOCK["package"]}
    assert sources == {(("registry", "https://pypi.org/simple"),), (("editable", "."),)}


TEXTS = ("svc", "docs", "recipes", "benchmarks", "tests", "README.md", "CHANGELOG.md", "noxfile.py", "pyproject.toml")
OF_ANOTHER_PROJECT = re.compile(
    r"""pip install (-\S+ )*['"]?svc(?![-\w/.])|['"]svc(\[|\s*[<>=~!]=)""",
)


def texts() -> Iterator[Path]:
    """Yield every file from which a reader may copy a command."""
    for name in TEXTS:
        place = ROOT / name
        found = [place] if place.is_file() else place.rglob("*")
        yield from (path for path in found if path.suffix in READ and "corpus" not in path.parts)


READ = {".py", ".md", ".toml", ".html", ".js", ".yaml", ".yml", ".sh", ".txt", ".json", ".tpl", ".conf", ".cfg"}


def test_no_text_installs_svc_from_the_package_index() -> None:
    """`svc` on the package index is another project."""
    assert PROJECT["name"] == DISTRIBUTION
    assert OF_ANOTHER_PROJECT.search("pip install 'svc[s3]'") and OF_ANOTHER_PROJECT.search("pip install -U svc\n")
    assert not OF_ANOTHER_PROJECT.search(install_command("s3"))
    mine = Path(__file__).name
    found = {str(p.relative_to(ROOT)) for p in texts() if p.name != mine and OF_ANOTHER_PROJECT.search(p.read_text())}
    assert found == set()


def test_the_single_file_never_advises_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The single-file program cannot import packages that pip installs."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "pip" not in install_command("report")
    assert "extra report" in install_command("report")
