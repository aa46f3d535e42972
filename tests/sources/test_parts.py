"""Sources of many files: folders, patterns, Hive partitions, and files that differ from the others."""

from __future__ import annotations

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import DataSourceError, RecipeError
from svc.settings import Settings
from svc.sources.parts import _fits, _require_plain_objects

IDS = ("user_id", "item_id")


def parquet(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def csv(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def days(folder: Path, count: int = 5) -> None:
    """Write one file for each of `count` days, in another order than that of their names."""
    for day in sorted(range(count), key=lambda day: day * 7 % count):
        parquet(folder / f"date=2026-01-{day + 1:02}" / "a.parquet", user_id=[f"u{day}"], item_id=["i"], n=[day])


@pytest.mark.parametrize(
    "path", ["lake", "lake/", "lake/date=*/*.parquet", "lake/**/a.parquet", "l?ke/[d]ate=*", "./lake"]
)
def test_files_are_read_in_sorted_order(make: Any, tmp_path: Path, path: str) -> None:
    """The path may be a folder, a pattern of files, or a pattern of folders."""
    days(tmp_path / "lake")
    frame = make("parquet", path=path).fetch()
    assert frame["user_id"].to_list() == ["u0", "u1", "u2", "u3", "u4"]
    assert frame["n"].to_list() == [0, 1, 2, 3, 4]
    assert frame["date"].to_list() == [f"2026-01-0{day}" for day in range(1, 6)]


def test_an_absolute_path_may_be_a_folder(make: Any, tmp_path: Path) -> None:
    """An absolute pattern and a file:// URI work too."""
    days(tmp_path / "lake", 3)
    for path in (f"{tmp_path}/lake", f"{tmp_path}/lake/*/*.parquet", f"file://{tmp_path}/lake"):
        assert make("parquet", path=path).fetch()["n"].to_list() == [0, 1, 2]


def test_markers_and_files_with_other_extensions_are_skipped(make: Any, tmp_path: Path) -> None:
    """Names that begin with _ or . are skipped at every level."""
    days(tmp_path / "lake", 2)
    for name in ("_SUCCESS", ".hidden.parquet", "_temporary/0/a.parquet", "_spark_metadata/0.json", "readme.txt"):
        csv(tmp_path / "lake" / name, "no table")
    assert len(make("parquet", path="lake").fetch()) == 2
    assert len(make("parquet", path="lake/**/*.parquet").fetch()) == 2


def test_csv_files_of_a_folder_are_one_table(make: Any, tmp_path: Path) -> None:
    """Files may be compressed and have their columns in any order. Types are inferred over all files."""
    csv(tmp_path / "lake/b.csv", "item_id,x,user_id\nj,1.5,02\n")
    csv(tmp_path / "lake/a.csv.gz", "user_id,item_id,x\n01,i,7\n")
    frame = make("csv", path="lake").fetch()
    assert frame["user_id"].to_list() == ["01", "02"]
    assert frame["x"].to_list() == [7.0, 1.5]
    assert list(frame.columns) == ["user_id", "item_id", "x"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_partitions_are_text_columns(make: Any, tmp_path: Path, kind: str) -> None:
    """Escapes are decoded, Hive's null is a missing value, and a partition may be an id column."""
    for user, country in (("01", "a%2Fb"), ("02", "__HIVE_DEFAULT_PARTITION__")):
        path = tmp_path / f"lake/user_id={user}/country={country}/part.{kind}"
        csv(path, "item_id\ni\nj\n") if kind == "csv" else parquet(path, item_id=["i", "j"])
    frame = make(kind, path="lake", columns=("country", "user_id", "item_id")).fetch()
    assert list(frame.columns) == ["country", "user_id", "item_id"]
    assert frame["user_id"].to_list() == ["01", "01", "02", "02"]
    assert frame["country"].to_list()[:2] == ["a/b", "a/b"]
    assert frame["country"].isna().to_list() == [False, False, True, True]
    table = make(kind, path="lake", columns=("user_id",)).fetch_arrow()
    assert table["user_id"].to_pylist() == ["01", "01", "02", "02"]


def test_a_partition_overrides_a_column_of_its_name(make: Any, tmp_path: Path) -> None:
    """Hive and Spark do the same."""
    parquet(tmp_path / "lake/user_id=7/a.parquet", user_id=["other"], item_id=["i"])
    assert make("parquet", path="lake", columns=IDS).fetch()["user_id"].to_list() == ["7"]


def test_only_wanted_columns_of_many_files_are_read(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other columns may differ in type between the files."""
    parquet(tmp_path / "lake/a.parquet", user_id=["u"], item_id=["i"], big=["x"])
    parquet(tmp_path / "lake/b.parquet", user_id=["v"], item_id=["i"], big=[[1, 2]])
    asked: list[list[str]] = []
    read = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda self, **options: asked.append(options["columns"]) or read(self, **options),
    )
    assert make("parquet", path="lake", columns=IDS).fetch()["user_id"].to_list() == ["u", "v"]
    assert asked == [["user_id", "item_id"]] * 2


def test_no_matching_file_ends_with_3_and_a_sha256_for_many_with_2(make: Any, tmp_path: Path) -> None:
    """An empty folder and a pattern without matches end with 3. A sha256 for a folder or a pattern ends with 2."""
    (tmp_path / "lake").mkdir()
    for path in ("lake", "lake/*.parquet", "nowhere/*.parquet"):
        with pytest.raises(DataSourceError, match=r"holds no file to read|does not exist") as caught:
            make("parquet", path=path).fetch()
        assert caught.value.exit_code == 3
    days(tmp_path / "lake", 1)
    for path in ("lake", "lake/*/*.parquet"):
        with pytest.raises(RecipeError, match="sha256 is for one file") as refused:
            make("parquet", path=path, sha256="0" * 64).fetch()
        assert refused.value.exit_code == 2


def test_an_existing_file_with_a_name_like_a_pattern_is_read(make: Any, tmp_path: Path) -> None:
    """The name of an existing file is not used as a pattern."""
    csv(tmp_path / "a[1]*.csv", "user_id,item_id\nu,i\n")
    csv(tmp_path / "a1.csv", "user_id,item_id\nv,i\n")
    assert make("csv", path="a[1]*.csv").fetch()["user_id"].to_list() == ["u"]


def test_brackets_in_the_name_of_a_folder_are_no_pattern(make: Any, tmp_path: Path) -> None:
    """A pattern may follow such a folder. Without the folder, the brackets are a pattern."""
    csv(tmp_path / "sales [2024]/day*1/a.csv", "user_id,item_id\nu,i\n")
    csv(tmp_path / "sales 2/a.csv", "user_id,item_id\nv,i\n")
    for path in ("sales [2024]", "sales [2024]/*/*.csv", f"{tmp_path}/sales [2024]/day*1/?.csv"):
        assert make("csv", path=path).fetch()["user_id"].to_list() == ["u"]
    assert make("csv", path="sales [2-3]/*.csv").fetch()["user_id"].to_list() == ["v"]
    with pytest.raises(DataSourceError, match=r"b\.csv does not exist"):
        make("csv", path="sales [2024]/b.csv").fetch()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"user_id": ["u"], "item_id": ["i"]}, r"has no column n; it has user_id, item_id"),
        (
            {"user_id": ["u"], "item_id": ["i"], "n": ["x"]},
            r"does not fit the files before it, from .*01/a\.parquet on: .*Field n .*: int64 vs string",
        ),
    ],
)
def test_a_missing_or_different_column_names_both_files(
    make: Any, tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    """A column that is missing in one file, or has another type there, is an error."""
    days(tmp_path / "lake")
    parquet(tmp_path / "lake/date=2026-01-03/a.parquet", **columns)
    with pytest.raises(DataSourceError, match=r"date=2026-01-03/a\.parquet.*" + words):
        make("parquet", path="lake", columns=(*IDS, "n")).fetch()


def test_compatible_types_are_unified(make: Any, tmp_path: Path) -> None:
    """Integers, decimals and nulls, texts and their dictionaries, and ids that are integers or text are compatible."""
    words = pa.array(["w"]).dictionary_encode()
    price = pa.array([Decimal("3.25")], pa.decimal128(9, 2))
    parquet(tmp_path / "lake/a.parquet", user_id=[1], n=pa.array([1], pa.int32()), price=[3], word=["w"])
    parquet(tmp_path / "lake/b.parquet", user_id=["2"], n=pa.array([2**40]), price=price, word=words)
    parquet(tmp_path / "lake/c.parquet", user_id=["3"], n=pa.nulls(1), price=[None], word=["w"])
    frame = make("parquet", path="lake").fetch()
    assert frame["user_id"].to_list() == ["1", "2", "3"]
    assert frame["n"].to_list()[:2] == [1, 2**40]
    assert frame["price"].to_list()[:2] == [3, 3.25]
    assert frame["word"].to_list() == ["w"] * 3


def test_without_requested_columns_all_files_must_have_the_same(make: Any, tmp_path: Path) -> None:
    """One more column or partition in a file is an error."""
    parquet(tmp_path / "lake/a.parquet", user_id=["u"])
    parquet(tmp_path / "lake/b.parquet", user_id=["u"], more=[1])
    with pytest.raises(DataSourceError, match=r"b\.parquet and .*a\.parquet have different columns: more"):
        make("parquet", path="lake").fetch()
    parquet(tmp_path / "lake/b.parquet", user_id=["u"])
    parquet(tmp_path / "lake/day=1/c.parquet", user_id=["u"])
    with pytest.raises(DataSourceError, match=r"c\.parquet and .*different partitions: day"):
        make("parquet", path="lake").fetch()


def test_a_broken_file_among_many_is_named(make: Any, tmp_path: Path) -> None:
    """The file is truncated, empty, of another kind, or damaged inside."""
    table = pa.table({"user_id": ["u"] * 50, "item_id": ["i"] * 50})
    for number in range(150):
        path = tmp_path / f"lake/date={number % 30:02}/part-{number:04}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    assert len(make("parquet", path="lake", columns=IDS).fetch()) == 7_500
    bad = tmp_path / "lake/date=07/part-0127.parquet"
    whole = bad.read_bytes()
    middle = len(whole) // 3
    for content in (whole[:-20], b"", b"user_id,item_id\n", whole[:40] + bytes(middle) + whole[40 + middle :]):
        bad.write_bytes(content)
        with pytest.raises(DataSourceError, match=r"date=07/part-0127\.parquet"):
            make("parquet", path="lake", columns=IDS).fetch()


def test_a_broken_csv_file_is_named(make: Any, tmp_path: Path) -> None:
    """One of many files has a row with too few fields."""
    for name in "abc":
        csv(tmp_path / f"lake/{name}.csv", "user_id,item_id\nu,i\n")
    csv(tmp_path / "lake/b.csv", "user_id,item_id\nu\n")
    with pytest.raises(DataSourceError, match=r"lake/b\.csv cannot be parsed"):
        make("csv", path="lake").fetch()


def test_symlinks_are_followed_and_cycles_refused(make: Any, tmp_path: Path) -> None:
    """A link to a folder that contains the link is an error."""
    days(tmp_path / "elsewhere", 2)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake/more").symlink_to(tmp_path / "elsewhere")
    assert len(make("parquet", path="lake").fetch()) == 2
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "lake")
    with pytest.raises(DataSourceError, match="link to a folder that contains it"):
        make("parquet", path="lake").fetch()


def test_a_probe_reads_the_first_file(make: Any, tmp_path: Path) -> None:
    """The probe returns the number of files, and the columns with the partitions."""
    days(tmp_path / "lake", 3)
    lines = make("parquet", path="lake", columns=("user_id", "date")).probe()
    assert lines[0].endswith("lake: 3 files")
    assert lines[2].endswith("date=2026-01-01/a.parquet: has the columns user_id, date")
    csv(tmp_path / "texts/a.csv", "user_id,item_id\n")
    assert make("csv", path="texts").probe()[0].endswith("texts: 1 files")


NAMES = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5)


@given(NAMES)
def test_two_stars_match_any_number_of_segments(names: list[str]) -> None:
    """`**` also matches no segment."""
    assert _fits(("**",), names)
    assert _fits(("**", "a"), names) == (names[-1:] == ["a"])
    assert _fits(("a", "**"), names) == (names[:1] == ["a"])
    assert _fits(("*",) * len(names), names)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_many_objects_are_read_like_files(
    make: Any, tmp_path: Path, s3_bucket: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders and patterns in an object store give the same rows as on disk. A broken object is named.

    The store lists them in three pages.
    """
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "50")
    bucket, filesystem = s3_bucket
    names = [f"date={number % 30:02}/part-{number:03}.parquet" for number in range(120)]
    for number, name in enumerate(names):
        parquet(tmp_path / "lake" / name, user_id=[f"u{number}", "u"], item_id=["i", "j"], x=[1, 2])
        filesystem.pipe_file(f"{bucket}/lake/{name}", (tmp_path / "lake" / name).read_bytes())
    filesystem.pipe_file(f"{bucket}/lake/_SUCCESS", b"")
    patient = Settings(http_timeout_s=60)
    asked = {"columns": ("user_id", "date"), "settings": patient}
    expected = make("parquet", path="lake", **asked).fetch_arrow()
    assert expected.num_rows == 240
    for path in ("lake", "lake/date=*/*.parquet"):
        assert make("parquet", path=f"{bucket}/{path}", **asked).fetch_arrow().equals(expected), path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("svc.sources.parts.SMALL_OBJECT_BYTES", 0)
        few = make("parquet", path=f"{bucket}/lake/date=03/", columns=("user_id",), settings=patient).fetch_arrow()
    assert few.num_rows == 2 * len([name for name in names if name.startswith("date=03/")])
    assert make("parquet", path=f"{bucket}/lake", settings=patient).probe()[0].endswith("120 files")
    filesystem.pipe_file(f"{bucket}/lake/{names[67]}", b"PAR1 broken")
    with pytest.raises(DataSourceError, match=names[67]):
        make("parquet", path=f"{bucket}/lake", **asked).fetch_arrow()
    with pytest.raises(DataSourceError, match=r"does not exist|holds no file"):
        make("parquet", path=f"{bucket}/none/", **asked).fetch_arrow()
    with pytest.raises(DataSourceError, match=r"does not exist"):
        make("parquet", path=f"{bucket}/none", **asked).fetch_arrow()


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("_delta_log/00000.json", r"table is a Delta table, .*removed rows: set `type: delta`"),
        (".hoodie/hoodie.properties", r"table is a Hudi table, .*: svc does not read Hudi; write its current rows as"),
        ("metadata/v1.metadata.json", r"table is an Iceberg table, .*removed rows: set `type: iceberg`"),
    ],
)
def test_folders_of_table_formats_are_no_parquet(make: Any, tmp_path: Path, marker: str, words: str) -> None:
    """They hold removed rows, too. Neither a pattern, a partition nor a folder above reads them."""
    parquet(tmp_path / "lake/table/data/day=1/a.parquet", user_id=["u"], item_id=["i"])
    parquet(tmp_path / "lake/table/b.parquet", user_id=["u"], item_id=["i"])
    (tmp_path / "lake/table" / marker).parent.mkdir()
    (tmp_path / "lake/table" / marker).touch()
    for path in (
        "lake/table",
        "lake",
        "lake/*/*.parquet",
        "lake/table/*.parquet",
        "lake/table/data",
        "lake/table/data/day=1",
    ):
        with pytest.raises(DataSourceError, match=words):
            make("parquet", path=path).fetch()
    with pytest.raises(DataSourceError, match=words):
        make("parquet", path="lake/table").probe()
    uris = [f"s3://b/lake/table/{name}" for name in (marker, "b.parquet")]
    with pytest.raises(DataSourceError, match=f"^s3://b/lake/{words}"):
        _require_plain_objects(uris)


def test_a_folder_called_metadata_is_no_table_format(make: Any, tmp_path: Path) -> None:
    """Only the metadata files of Iceberg make it one. Files of csv are never of a table format."""
    parquet(tmp_path / "lake/a.parquet", user_id=["u"], item_id=["i"])
    parquet(tmp_path / "lake/metadata/b.parquet", user_id=["u"], item_id=["i"])
    assert len(make("parquet", path="lake").fetch()) == 2
    csv(tmp_path / "texts/a.csv", "user_id,item_id\nu,i\n")
    (tmp_path / "texts/_delta_log").mkdir()
    assert len(make("csv", path="texts").fetch()) == 1
    _require_plain_objects(["s3://b/lake/metadata/b.parquet", "s3://b/metadata/lake/v1.metadata.json"])
