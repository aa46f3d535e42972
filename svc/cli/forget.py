"""`svc forget`: rewrite every kept version of a recipe's model without some users."""

from __future__ import annotations

import csv
import hmac
import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from svc.cli.common import DevAllowUnsigned, EnvVar, RecipeFile, interrupts, open_recipe
from svc.errors import ArtifactError, ArtifactWriteError, ConfigError, DataSourceError, SvcError, UsageError
from svc.names import ARM_MARK, SURROGATE

if TYPE_CHECKING:
    from svc.artifact.keys import SigningKeys
    from svc.artifact.layout import Parsed
    from svc.artifact.versions import Rewritten
    from svc.recipe.load import LoadedRecipe
    from svc.settings import Settings

DIGEST_HEX = 32
_VERSION = re.compile(r"\.([0-9a-f]{8})\.svc$")
EPILOG = """
[bold]Examples[/bold]
  svc forget recipes/books.yaml --user u42
  svc forget recipes/books.yaml --users erased.txt --dry-run

[bold]Exit codes[/bold]
  0 forgotten          5 an artifact cannot be verified or written
  2 bad recipe, usage  6 a training of the recipe runs
  3 list not readable  8 no signing keys
"""


def command(
    recipe_file: RecipeFile,
    user: Annotated[list[str] | None, typer.Option(metavar="ID", help="A user to forget. Repeatable.")] = None,
    users: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with one user id per line.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which versions know the users. Write nothing.")
    ] = False,
    env_var: EnvVar = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
) -> None:
    """Rewrite every version of a recipe's model without the named users, and remove the old files.

    Other users' answers stay the same. What the model learned from all users together stays too.
    """
    ids = _ids(user or [], users)
    loaded, keys, settings = open_recipe(recipe_file, env_var, unsigned=dev_allow_unsigned)
    if not dry_run and not keys.entries:
        raise ConfigError("svc forget signs the versions anew: set SVC_SIGNING_KEYS")
    from svc.artifact.lock import run_lock

    with interrupts(), ExitStack() as locks:
        artifacts, failed = _artifacts(loaded, keys, settings)
        for uri in artifacts:
            # All locks before any change, so that a running training ends the command with nothing done.
            locks.enter_context(run_lock(uri, timeout_s=0.0, settings=settings))
        # The list comes first: if the command is killed behind it, no training brings the users back.
        listed = None if dry_run else _add_to_list(loaded, ids)
        rewritten: list[Rewritten] = []
        for uri, about in artifacts.items():
            try:
                rewritten += _rewrite(uri, *about, ids, keys, settings, dry_run=dry_run)
            except (ArtifactError, ArtifactWriteError) as error:
                # The other artifacts must forget all the same.
                failed[uri] = error
        n_lines = None if dry_run else _forget_in_log(loaded, ids)
    _say(loaded, ids, rewritten, failed, listed, n_lines, dry_run=dry_run)
    for why in failed.values():
        raise why


def _artifacts(
    loaded: LoadedRecipe, keys: SigningKeys, settings: Settings
) -> tuple[dict[str, tuple[str, bool]], dict[str, SvcError]]:
    """Return the artifacts of the recipe and of its arms by address, and the errors of arms that cannot be verified.

    The value has the recipe that the artifact was trained for, and whether it has versions. A version that an arm names
    stands for all versions of its artifact.
    """
    from svc.artifact.replay import recipe_of
    from svc.artifact.store import open_store, verify_blob

    versioned = loaded.recipe.output.versioning == "append_sha"
    artifacts, failed = {loaded.output_uri: (loaded.recipe.name, versioned)}, dict[str, SvcError]()
    for arm in loaded.arms:
        uri = _VERSION.sub(".svc", arm.output_uri)
        if uri not in artifacts:
            try:
                store = open_store(uri, settings)
                parsed = verify_blob(store.read(settings.max_artifact_bytes), keys, settings)
                artifacts[uri] = recipe_of(parsed.header, loaded.recipe.name), store.live() is not None
            except ArtifactError as error:
                failed[uri] = error
    return artifacts, failed


def _forget_in_log(loaded: LoadedRecipe, ids: Sequence[str]) -> int | None:
    """Remove the lines of the users from the served log. Return their number, or None without a log of units."""
    from svc.asking.experiment import unit_digest
    from svc.serving.served_log import forget_units

    folder, experiment = loaded.served_log_folder, loaded.recipe.serving.experiment
    if folder is None or experiment is None:
        return None
    digests = (unit_digest(experiment.salt, user) for user in ids)
    try:
        return forget_units(folder, loaded.recipe.name, digests)
    except OSError as error:
        raise ArtifactWriteError(f"the served log in {folder} cannot be written: {error.strerror or error}") from None


def _ids(named: Sequence[str], file: Path | None) -> list[str]:
    ids = list(named)
    if file is not None:
        try:
            # Not `splitlines`, because an id may hold a line separator of Unicode.
            ids += [line for line in file.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--users: {file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if any(SURROGATE.search(user) for user in ids):
        raise UsageError("--user: an id is not UTF-8")
    if not ids:
        raise UsageError("name a user: --user ID, or --users FILE with one id per line")
    return list(dict.fromkeys(ids))


def _rewrite(
    uri: str, recipe: str, versioned: bool, ids: Sequence[str], keys: SigningKeys, settings: Settings, *, dry_run: bool
) -> list[Rewritten]:
    """Rewrite the versions of an artifact that know any of the users. With `dry_run`, only find them."""
    from svc.artifact import layout
    from svc.artifact.versions import Versions
    from svc.model.codec import encode
    from svc.model.forgetting import users_in, without_users
    from svc.model.load_model import load_model

    active, key = ("", b"") if dry_run else keys.active

    def rewrite(parsed: Parsed) -> Callable[[BinaryIO], layout.Written] | None:
        """Return the writer of the version without the users, or None if it does not know them."""
        # Also versions for another irspack, which this process would not serve.
        model = load_model(parsed.header, parsed.payload, name=recipe, allow_skew=True)
        found_ids = users_in(model, ids)
        if not found_ids:
            return None
        header = {**parsed.header, "forgotten": parsed.header.get("forgotten", 0) + len(found_ids)}
        remaining = without_users(model, found_ids)

        def write(out: BinaryIO) -> layout.Written:
            signature = settings.artifact_signature
            payload = encode(remaining)
            return layout.write(out, kid=active, key=key, header=header, payload=payload, signature=signature)

        return write

    # With the key, because anybody could find u42 behind a plain digest by trying ids.
    digests = [hmac.digest(key, user.encode(), "sha256").hex()[:DIGEST_HEX] for user in ids]
    facts: Mapping[str, Any] = {"forgot": {"count": len(ids), "digests": digests}}
    versions = Versions(uri, keys, settings, recipe=recipe)
    if not versioned:
        return versions.rewrite_single(rewrite, dry_run=dry_run)
    return versions.rewrite_all(rewrite, facts, dry_run=dry_run)


def _add_to_list(loaded: LoadedRecipe, ids: Sequence[str]) -> Path | None:
    """Add the ids to the recipe's list of forgotten users if it is a local csv file with only their column.

    Return its path, or None for another list, which is its owner's to change. Raises DataSourceError.
    """
    from svc.artifact.store import local_path, scheme_of
    from svc.atomic_write import replace_file
    from svc.sources.text_files import CODECS

    declared = loaded.recipe.cleansing.forget
    if declared is None or declared.source.type != "csv":
        return None
    options = declared.source.options
    address, delimiter = str(options.get("path", "")), str(options.get("delimiter", ","))
    encoding = str(options.get("encoding", "utf-8"))
    if scheme_of(address) not in ("", "file"):
        return None
    path = loaded.base_dir / local_path(address)
    is_new = not path.exists()
    # A pattern without a file, or a compressed file, is not to be created as plain text.
    if is_new and (any(mark in address for mark in "*?[") or address.lower().endswith(tuple(CODECS))):
        return None
    # The csv module takes one character. A list of one column has no delimiter anyway.
    form: Any = {"delimiter": delimiter if len(delimiter) == 1 else ",", "lineterminator": "\n"}
    try:
        text = "" if is_new else path.read_bytes().decode(encoding)
        text = text or f"{declared.id_column}\n"
        # Only for comparing: the file keeps its byte order mark.
        rows = [*csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), **form)]
        if rows[0] != [declared.id_column]:
            return None
        listed, out = {row[0] for row in rows if row}, io.StringIO(newline="")
        # By the csv module, which quotes an id that has a comma or a quote.
        csv.writer(out, **form).writerows([user] for user in ids if user not in listed)
        text += "" if text.endswith("\n") else "\n"
        replace_file(path, (text + out.getvalue()).encode(encoding))
    except (UnicodeError, csv.Error, IsADirectoryError):
        return None
    except OSError as error:
        raise DataSourceError(f"{path} cannot be read or written: {error.strerror or error}") from None
    return path


def _say(
    loaded: LoadedRecipe,
    ids: Sequence[str],
    rewritten: Sequence[Rewritten],
    failed: Mapping[str, SvcError],
    listed: Path | None,
    n_lines: int | None,
    *,
    dry_run: bool,
) -> None:
    verb = "would be rewritten" if dry_run else "was rewritten"
    for version in rewritten:
        target = "" if version.new is None else f" as {version.new}"
        typer.echo(f"{version.old} {verb}{target}{', which is live' if version.live else ''}")
    for uri, error in failed.items():
        typer.echo(f"NOT FORGOTTEN in {uri}: {error.message}")
    # A failed artifact may know the users.
    if not rewritten and not failed:
        typer.echo(f"no version knows {'this user' if len(ids) == 1 else 'these users'}")
    if dry_run:
        return
    moved = {version.old: version.new for version in rewritten}
    for arm in loaded.arms:
        pinned = _VERSION.search(arm.output_uri)
        if pinned is not None and (new := moved.get(pinned[1])) is not None:
            arm_name = arm.recipe.name.partition(ARM_MARK)[2]
            typer.echo(f"the arm {arm_name} has no model until its path names {new} instead of {pinned[1]}")
    if n_lines is not None:
        typer.echo(f"{n_lines} lines removed from the served log in {loaded.served_log_folder}")
    if listed is not None:
        typer.echo(f"{listed} has the ids, so that no training brings them back")
    elif loaded.recipe.cleansing.forget is not None:
        typer.echo(
            "not touched: the list of cleansing.forget: add the ids, or the next training reads their rows again"
        )
    else:
        typer.echo("the next training reads their rows again, unless its data loses them: see cleansing.forget")
    from svc.artifact.store import local_path, scheme_of

    if scheme_of(loaded.output_uri) in ("", "file"):
        for manifest in sorted(local_path(loaded.output_uri).parent.glob("*.manifest.json")):
            typer.echo(f"not touched: the export {manifest.name.removesuffix('.manifest.json')}")
    typer.echo("not touched: data, exports and copies elsewhere")
