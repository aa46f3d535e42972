"""Recipe files of a folder: which are served, and under which name."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from svc.errors import RecipeError, RecipeSecurityError
from svc.names import stem_of
from svc.serving.models.recipes import Declared, RecipeFolder, Refused, declare


def parse(path: Path) -> Any:
    """Parse a recipe that consists of its name. The names `broken`, `odd` and `evil` raise an error."""
    text = path.read_text(encoding="utf-8").strip()
    if text == "broken":
        raise RecipeError(f"{path.name}: is broken")
    if text == "odd":
        raise ValueError("no rule foresees this")
    if text == "evil":
        raise RecipeSecurityError(f"{path.name}: scheme evil:// is not allowed")
    return SimpleNamespace(recipe=SimpleNamespace(name=text), path=path, arms=())


def names(found: dict[str, Any]) -> dict[str, str]:
    return {file: one.why if isinstance(one, Refused) else one.recipe.name for file, one in found.items()}


def test_only_direct_yaml_children_count(tmp_path: Path) -> None:
    """`.yml` files, other files and files in subfolders are ignored silently."""
    (tmp_path / "b.yaml").write_text("two")
    (tmp_path / "a.yaml").write_text("one")
    (tmp_path / "c.yml").write_text("three")
    (tmp_path / "notes.txt").write_text("four")
    (tmp_path / "sub.yaml").mkdir()
    (tmp_path / "sub.yaml" / "d.yaml").write_text("five")
    assert names(RecipeFolder(tmp_path, parse).scan()) == {"a.yaml": "one", "b.yaml": "two"}


def test_yml_files_are_recipes_if_the_setting_permits(tmp_path: Path) -> None:
    """Of two files with one stem, only the `.yml` file is refused."""
    (tmp_path / "a.yaml").write_text("one")
    (tmp_path / "a.yml").write_text("other")
    (tmp_path / "c.yml").write_text("three")
    found = RecipeFolder(tmp_path, parse, with_yml=True).scan()
    assert names(found) == {"a.yaml": "one", "a.yml": "parse", "c.yml": "three"}
    assert "a.yaml is there too" in found["a.yml"].error
    assert (stem_of("a.yml"), stem_of("a.yaml")) == ("a", "a")


def test_refusals_have_their_reason(tmp_path: Path) -> None:
    """Invalid files, forbidden files and entries that are not files are refused."""
    (tmp_path / "broken.yaml").write_text("broken")
    (tmp_path / "evil.yaml").write_text("evil")
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.yaml")
    found = RecipeFolder(tmp_path, parse).scan()
    assert names(found) == {
        "broken.yaml": "parse",
        "dangling.yaml": "parse",
        "evil.yaml": "security",
        "pipe.yaml": "parse",
    }


def test_an_unexpected_error_of_one_file_hides_no_other(tmp_path: Path) -> None:
    """Only this file is refused."""
    (tmp_path / "good.yaml").write_text("good")
    (tmp_path / "odd.yaml").write_text("odd")
    found = RecipeFolder(tmp_path, parse).scan()
    assert names(found) == {"good.yaml": "good", "odd.yaml": "parse"}
    refused = found["odd.yaml"]
    assert isinstance(refused, Refused)
    assert refused.error == "odd.yaml: cannot be checked: ValueError: no rule foresees this"


def test_a_file_name_outside_utf_8_is_refused_and_escaped(tmp_path: Path) -> None:
    """Logs and health documents can show the escaped name."""
    (tmp_path / os.fsdecode(b"\xff.yaml")).write_text("one")
    ((name, refused),) = RecipeFolder(tmp_path, parse).scan().items()
    assert name == "\\xff.yaml"
    assert isinstance(refused, Refused)
    assert refused.error == "\\xff.yaml: the file's name is not UTF-8; rename it"


def test_a_link_may_stay_in_the_folder_but_not_leave_it(tmp_path: Path) -> None:
    """Mounted configuration uses links within the folder. A link to a file outside is a security violation."""
    home = tmp_path / "recipes"
    (home / "..data").mkdir(parents=True)
    (home / "..data" / "a.yaml").write_text("inside")
    (home / "a.yaml").symlink_to("..data/a.yaml")
    (tmp_path / "secret.yaml").write_text("outside")
    (home / "b.yaml").symlink_to(tmp_path / "secret.yaml")
    assert names(RecipeFolder(home, parse).scan()) == {"a.yaml": "inside", "b.yaml": "security"}


def test_a_file_is_parsed_again_only_if_its_bytes_changed(tmp_path: Path) -> None:
    """New bytes of the same size and time are parsed too."""
    file = tmp_path / "a.yaml"
    file.write_text("one")
    folder = RecipeFolder(tmp_path, parse)
    first = folder.scan()["a.yaml"]
    status = file.stat()
    file.touch()
    assert folder.scan()["a.yaml"] is first
    file.write_text("two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert names(folder.scan()) == {"a.yaml": "two"}


def test_a_refused_file_is_parsed_again_when_it_changes(tmp_path: Path) -> None:
    """The file is served as soon as it parses."""
    file = tmp_path / "a.yaml"
    file.write_text("broken")
    folder = RecipeFolder(tmp_path, parse)
    assert names(folder.scan()) == {"a.yaml": "parse"}
    file.write_text("mended")
    assert names(folder.scan()) == {"a.yaml": "mended"}


def recipe(name: str) -> Any:
    return cast(Any, SimpleNamespace(recipe=SimpleNamespace(name=name), arms=()))


def test_of_two_files_with_one_name_the_first_by_file_name_wins() -> None:
    """The other file is refused with an error that names the first."""
    declared, refused = declare({"b.yaml": recipe("x"), "a.yaml": recipe("x")}, {})
    assert declared["x"].file == "a.yaml"
    assert refused["b.yaml"].why == "duplicate"
    assert "a.yaml" in refused["b.yaml"].error


def test_a_declared_file_that_stops_parsing_keeps_its_name_and_recipe() -> None:
    """The file keeps its last recipe, with the error. A file that never parsed is refused."""
    good = recipe("x")
    bad = Refused("a.yaml: line 1", "parse")
    declared, refused = declare({"a.yaml": bad, "new.yaml": bad}, {"x": Declared("a.yaml", good)})
    assert declared["x"] == Declared("a.yaml", good, bad)
    assert list(refused) == ["new.yaml"]


def test_a_file_may_change_its_recipe_name() -> None:
    """The recipe under the old name is removed."""
    declared, _ = declare({"a.yaml": recipe("new")}, {"old": Declared("a.yaml", recipe("old"))})
    assert list(declared) == ["new"]
