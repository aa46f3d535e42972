"""`svc recommend`: write the recommendations of all users, as one file, as shards, or on a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os.path import realpath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from svc import logs
from svc.cli.common import (
    Confirmed,
    DevAllowUnsigned,
    EnvVar,
    check_unsigned,
    interrupts,
    load,
    progress_for,
    verifying_keys,
)
from svc.env_file import environment
from svc.errors import UsageError, UsersNotServed
from svc.names import Order
from svc.recipe.filter_tree import Filter, FilterProblem, parse_filter
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.export.request import ExportRequest
    from svc.export.run import OpenedArtifact
    from svc.model.model import Model
    from svc.model.ranking.item_sets import ItemSet
    from svc.model.ranking.new_items import NewItems
    from svc.recipe.load import LoadedRecipe

EPILOG = """
[bold]Examples[/bold]
  svc recommend recipes/books.yaml --output out/books.parquet
  svc recommend models/books.svc --users ids.txt --limit 5 --output mail.csv
  svc recommend books.yaml --filter '{"year": {"gte": 1990}}' --output n.csv
  svc recommend models/books.svc --related --output s3://shop/related.jsonl
  svc recommend books.yaml --to-users --items new.txt --output mail.csv
  svc recommend books.svc --shard 3/16 --output s3://shop/books.parquet
  svc recommend --merge --output s3://shop/books.parquet
  svc recommend books.svc --engine dask://10.0.0.7:8786 --output s3://a/b.csv

Beside the file lies its manifest, <output>.manifest.json, written last.

[bold]Exit codes[/bold]
  0 success                  5 artifact or part not usable, or not written
  2 bad recipe or usage      8 configuration, such as no signing keys
  3 list of ids unreadable   130, 143 interrupted
"""


def allowed_items(
    recipe: LoadedRecipe,
    tree: Any,
    model: Model,
    settings: Settings,
    variables: Mapping[str, str],
    new: NewItems | None = None,
) -> ItemSet | None:
    """Return the items that the recipe's server would permit now and that pass the filter `tree` of --filter.

    None means all items. `new` are new items that may be recommended too.

    Raises UsageError for a tree that is no filter, MetadataError and DataSourceError for tables that cannot be read.
    """
    from svc.asking.item_tables import load_metadata
    from svc.asking.offer import Offer
    from svc.model.ranking.new_items import ids_with

    # The table of metadata is read only for a filter.
    asked, fields = _parse_tree(tree, recipe, settings), None
    if asked is not None:
        fields = load_metadata(recipe, settings, ids_with(model.item_ids, new), variables).filters
    offer = Offer.read(recipe, model, settings, variables, new_items=new, filters=fields)
    return offer.allowed_items(None if asked is None else offer.filters.items(asked))


def _parse_tree(tree: Any, recipe: LoadedRecipe, settings: Settings) -> Filter | None:
    if tree is None:
        return None
    kinds = recipe.recipe.filter_kinds
    # As in requests: a filter on a hidden field would reveal its values.
    open_kinds = {name: kind for name, kind in kinds.items() if not settings.is_denied(name)}
    try:
        return parse_filter(tree, open_kinds)
    except FilterProblem as problem:
        raise UsageError(f"--filter: {problem}") from None


def command(
    source: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE|ARTIFACT", help="An artifact, or a recipe (.yaml, .yml) for its live model."),
    ] = None,
    output: Annotated[
        str, typer.Option(help="Path or URI that ends with .parquet, .csv or .jsonl.", show_default=False)
    ] = "",
    users: Annotated[str, typer.Option(help="`all`, or a file with one user id per line (path or URI).")] = "all",
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Items for each user, or users for each item, at most 1,000.")
    ] = 100,
    related: Annotated[
        bool,
        typer.Option(
            "--related", help="Write related items of every item instead: seed_item_id, rank, item_id, score."
        ),
    ] = False,
    to_users: Annotated[
        bool, typer.Option("--to-users", help="Write the users for every item instead: item_id, rank, user_id, score.")
    ] = False,
    items: Annotated[
        str, typer.Option(help="With --to-users: `all`, or a file with one item id per line (path or URI).")
    ] = "all",
    order: Annotated[Order, typer.Option(metavar="ORDER", help="With --to-users: score, lift or balanced.")] = "score",
    filter_json: Annotated[
        str | None,
        typer.Option("--filter", metavar="JSON", help="Recommend only items that satisfy this filter. Needs a recipe."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="`I/N`: write part I, from 0, of N parts, to <stem>.I-of-N<extension>."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="With --merge or --engine: the number of parts.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Check all parts of --output and write their manifest. With --shard, only if all are there."
        ),
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="dask://HOST:PORT",
            help="Dask cluster that writes the parts: `dask://HOST:PORT` or `tls://HOST:PORT`.",
        ),
    ] = None,
    env_var: EnvVar = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
    confirmed: Confirmed = False,
) -> None:
    """Write recommendations for all users, or related items or users for all items, to a file.

    --filter and --order are those of the HTTP API.
    """
    from pathlib import Path

    from svc.export.request import ExportRequest, Shard

    recipes = Path(source).parent if source is not None and _is_recipe(source) else Path()
    settings = Settings.from_env(environment(recipes))
    unsigned = check_unsigned(settings, wanted=dev_allow_unsigned, confirmed=confirmed)
    if not output:
        raise UsageError("--output is missing: a path or URI that ends with .parquet, .csv or .jsonl")
    # Before the model, which merging does not need.
    if merge and shard is None:
        if source is not None or engine is not None:
            raise UsageError("--merge needs only --output: it reads the parts' manifests, and no recipe or artifact")
        logs.configure(settings)
        from svc.export.manifest import merge as merge_parts

        merge_parts(output, shards, settings)
        return
    if source is None:
        raise UsageError("name the recipe or the artifact whose model recommends")
    _check_engine(engine, shard, shards)
    parsed = None if shard is None else Shard.parse(shard)
    tree = _filter(filter_json, source)
    request = ExportRequest(
        output=output,
        users=users,
        limit=limit,
        related=related,
        to_users=to_users,
        items=items,
        order=order,
        shard=parsed,
        filter=tree,
    )
    from svc.cores import limit_blas_threads
    from svc.export.run import check, export

    limit_blas_threads(1)  # the export scores in several threads, which share the cores
    check(request)
    with interrupts(), progress_for(settings) as progress:
        opened, request = _open(source, request, env_var or [], settings, unsigned=unsigned)
        if engine is not None:
            from svc.export.dask import DEFAULT_SHARDS, export_on_dask

            export_on_dask(request, opened, engine, shards or DEFAULT_SHARDS, settings, progress=progress)
            return
        export(request, opened, settings, progress)
        if merge and request.shard is not None:
            from svc.export.manifest import merge_if_complete

            merge_if_complete(request.output, request.shard.count, settings)


def _check_engine(engine: str | None, shard: str | None, shards: int | None) -> None:
    if engine is None and shards is not None:
        raise UsageError("--shards needs --merge or --engine; to write one part, give --shard I/N")
    if engine is not None and shard is not None:
        raise UsageError("--engine writes all parts: say how many with --shards, and leave --shard out")


def _filter(text: str | None, source: str) -> Any:
    if text is None:
        return None
    if not _is_recipe(source):
        raise UsageError(
            "--filter needs a recipe, whose item_metadata describes the items: name a recipe instead of an artifact"
        )
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--filter: is not JSON: {error}") from None


def _is_recipe(source: str) -> bool:
    return source.endswith((".yaml", ".yml"))


def _open(
    source: str, request: ExportRequest, env_var: list[str], settings: Settings, *, unsigned: bool
) -> tuple[OpenedArtifact, ExportRequest]:
    """Return the verified model and the request.

    If `source` is a recipe, a request for items is limited to the items that the recipe's server would allow. The
    request also gets the recipe's new items, unless it asks for related items. Raises UsersNotServed for a request for
    users if the recipe does not set `serving.users`.
    """
    from svc.export.run import open_artifact

    if not _is_recipe(source):
        keys = verifying_keys(settings, unsigned=unsigned, artifact=source)
        return open_artifact(source, keys, settings), request
    from dataclasses import replace
    from pathlib import Path

    from svc.asking.item_lists import new_items_of_recipe

    recipe, variables = load(Path(source), env_var, settings, for_serving=True)
    for where, spec in recipe.recipe.sources().items():
        path = recipe.base_dir / str(spec.options.get("path", ""))
        # Through links, and for every table of the recipe: the export would replace it.
        if "://" not in request.output and realpath(path) == realpath(request.output):
            raise UsageError(f"--output: {request.output} is the {where} of the recipe: name another file")
    if request.to_users and not recipe.recipe.serving.users:
        raise UsersNotServed
    opened = open_artifact(recipe.output_uri, verifying_keys(settings, unsigned=unsigned), settings)
    if request.to_users:
        return opened, request
    # As in the API, whose related items are those of the training.
    new = None if request.related else new_items_of_recipe(recipe, opened.model, settings, variables)
    allowed = allowed_items(recipe, request.filter, opened.model, settings, variables, new)
    return opened, replace(request, allowed=allowed, new=new)
