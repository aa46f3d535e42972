"""Variables from `keys.env` beside the recipes in development, or from the file that SVC_ENV_FILE names."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from svc.env_file import environment, key_list, read_lines
from svc.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    write(
        tmp_path / "keys.env", "# keys\nSVC_SIGNING_KEYS=a:1\n\nSVC_PORT=99\nLD_PRELOAD=/tmp/evil.so\nSVC_ENV_FILE=x\n"
    )
    return tmp_path


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_keys_beside_the_recipes_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest file is read, for relative paths too. Only svc's own names are used, and the environment wins."""
    found = environment(home / "recipes", {"SVC_PORT": "7", "SVC_ENV": "development", "HOME": "/h"})
    assert found == {"SVC_SIGNING_KEYS": "a:1", "SVC_PORT": "7", "SVC_ENV": "development", "HOME": "/h"}
    assert environment(home / "recipes", {"SVC_PORT": ""})["SVC_PORT"] == "99", "an empty value counts as unset"
    monkeypatch.chdir(home / "recipes")
    assert environment(Path(), {})["SVC_SIGNING_KEYS"] == "a:1"
    write(home / "recipes" / "keys.env", "\ufeffSVC_SIGNING_KEYS=b:2\r\nSVC_RECIPE_day=1\r\n")
    assert environment(Path(), {}) == {"SVC_SIGNING_KEYS": "b:2", "SVC_RECIPE_day": "1"}


def test_variables_of_the_file_that_the_environment_overrides_are_listed(home: Path) -> None:
    """A variable is overridden by another value, or by its other form, with or without `_FILE`."""
    path = write(home / "keys.env", "SVC_SIGNING_KEYS=a:1\nSVC_PORT=99\nSVC_HOST=::1\n")
    found = environment(home / "recipes", {"SVC_SIGNING_KEYS_FILE": "/run/keys", "SVC_PORT": "7", "SVC_HOST": "::1"})
    assert (found.file, found.overridden) == (path, ("SVC_SIGNING_KEYS", "SVC_PORT"))
    assert environment(home / "recipes", {}).overridden == ()


@pytest.mark.parametrize("env", ["production", "prod", "STAGING"])
def test_production_reads_only_a_file_that_is_named(home: Path, env: str) -> None:
    """Production and staging ignore `keys.env` beside the recipes, and read the file that SVC_ENV_FILE names."""
    assert environment(home / "recipes", {"SVC_ENV": env}) == {"SVC_ENV": env}
    assert environment(None, {}) == {}
    named = {"SVC_ENV": env, "SVC_ENV_FILE": str(home / "keys.env")}
    for recipes in (None, home / "recipes"):
        assert environment(recipes, named)["SVC_SIGNING_KEYS"] == "a:1"


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("SVC_SIGNING_KEYS=a:1\n", 0o660, "open to other users.*chmod 600"),
        ("SVC_SIGNING_KEYS=a:1\n", 0o604, "open to other users"),
        ("SVC_SIGNING_KEYS=a:1\nexport X=1\n", 0o600, "line 2 is not NAME=value without blanks"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(home: Path, text: str, mode: int, words: str) -> None:
    """A file that others can open, or with a malformed line, is refused, found or named by SVC_ENV_FILE."""
    write(home / "keys.env", text, mode)
    for environ in ({}, {"SVC_ENV_FILE": str(home / "keys.env")}):
        with pytest.raises(ConfigError, match=words):
            environment(home / "recipes", environ)


@pytest.mark.parametrize(
    ("ids", "is_read"), [((0, 0, 7), True), ((0, 5, 8), True), ((0, 5, 7), False), ((5, 5, 8), False)]
)
def test_a_file_of_root_may_be_readable_by_the_group_of_the_service(
    home: Path, monkeypatch: pytest.MonkeyPatch, ids: tuple[int, int, int], is_read: bool
) -> None:
    """A file of root with mode 640 is accepted if its group is one of the service's, or if root reads it."""
    owner, reader, group = ids
    status = os.stat_result((stat.S_IFREG | 0o640, 0, 0, 1, owner, group, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: status)
    monkeypatch.setattr(os, "geteuid", lambda: reader)
    monkeypatch.setattr(os, "getegid", lambda: 9)
    monkeypatch.setattr(os, "getgroups", lambda: [8])
    named = {"SVC_ENV_FILE": str(home / "keys.env")}
    if is_read:
        assert environment(None, named)["SVC_SIGNING_KEYS"] == "a:1"
    else:
        with pytest.raises(ConfigError, match="open to other users"):
            environment(None, named)


def test_keys_in_the_environment_replace_keys_of_the_file_in_either_form(home: Path) -> None:
    """SVC_SIGNING_KEYS and SVC_SIGNING_KEYS_FILE are two forms of one setting."""
    named = {"SVC_ENV_FILE": str(home / "keys.env"), "SVC_SIGNING_KEYS_FILE": "/run/keys"}
    assert "SVC_SIGNING_KEYS" not in environment(None, named)
    write(home / "keys.env", "SVC_API_KEYS_FILE=/run/api\n")
    assert "SVC_API_KEYS_FILE" not in environment(None, {"SVC_ENV_FILE": str(home / "keys.env"), "SVC_API_KEYS": "a:1"})


def test_a_named_file_must_exist(home: Path) -> None:
    """The file that SVC_ENV_FILE names must also be a regular file."""
    with pytest.raises(ConfigError, match=r"SVC_ENV_FILE: .*none\.env does not exist"):
        environment(None, {"SVC_ENV_FILE": str(home / "none.env")})
    with pytest.raises(ConfigError, match="not a regular file"):
        environment(None, {"SVC_ENV_FILE": str(home)})


def test_a_file_that_cannot_be_examined_is_a_configuration_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file and the reason, such as a folder that may not be searched."""

    def failing(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", failing)
    for environ in ({}, {"SVC_ENV_FILE": str(home / "keys.env")}):
        with pytest.raises(ConfigError, match=r"keys\.env cannot be accessed: Permission denied"):
            environment(home / "recipes", environ)


def test_a_key_file_has_the_entries_of_the_variable(tmp_path: Path) -> None:
    """Lines and commas separate entries. Comments are ignored."""
    path = tmp_path / "keys"
    path.write_text("# shop\na:1,b:2,\n\nc:3  # the new one\n")
    assert key_list("", str(path), "SVC_X") == ("a:1,b:2,c:3", f"SVC_X_FILE: {path}")
    assert key_list("a:1", None, "SVC_X") == ("a:1", "SVC_X")


def test_the_error_of_an_unusable_key_file_hides_its_content(tmp_path: Path) -> None:
    """Setting both the variable and its `_FILE` form is an error too."""
    (tmp_path / "empty").write_text("# none yet\n,\n", encoding="utf-8")
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"a:1\n" * 2**18 + b"\n")
    unusable = {"none": "cannot be read", ".": "cannot be read", "odd": "is not UTF-8", "long": "is larger than"}
    for file, words in {**unusable, "empty": "has no entry"}.items():
        with pytest.raises(ConfigError, match=f"SVC_X_FILE: .*{words}"):
            key_list("", str(tmp_path / file), "SVC_X")
    with pytest.raises(ConfigError, match="both set"):
        key_list("a:1", str(tmp_path / "odd"), "SVC_X")


@pytest.mark.parametrize("line", ['SVC_X="a"', "SVC_X='a'", "export SVC_X=a"])
def test_quotes_and_export_are_refused(tmp_path: Path, line: str) -> None:
    """A shell would remove them. As parts of a value they would spoil a key."""
    path = tmp_path / "keys.env"
    path.write_text(f"{line}\n", encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="line 1 is not NAME=value without blanks, quotes and export"):
        read_lines(path)
