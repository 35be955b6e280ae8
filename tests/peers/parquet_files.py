"""Writes the Parquet files of the trainer's tests, with Hugging Face's `datasets` and with pyarrow.

    make goldens

Row r of a file has a picture of 8 x 8 pixels in one color, (5 x r, 40 x class, file), and class r % 3.
"""

import io
import pathlib
import shutil

import datasets
import pyarrow
import pyarrow.parquet
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent / "goldens" / "parquet"


def picture(row, file):
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (5 * row % 256, 40 * (row % 3), file)).save(content, "PNG")
    return content.getvalue()


def rows(count, file):
    return {"image": [picture(row, file) for row in range(count)], "label": [row % 3 for row in range(count)]}


def of_datasets(count, file):
    names = ["cat", "dog", "bird"]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    return datasets.Dataset.from_dict(rows(count, file)).cast(features)


def write(name, table, **options):
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, **options)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    # Like on the Hub: written by `datasets`.
    for file, (name, count) in enumerate(
        [
            ("train-00000-of-00002", 60),
            ("train-00001-of-00002", 30),
            ("validation-00000-of-00001", 9),
            ("test-00000-of-00001", 3),
        ]
    ):
        path = FOLDER / "hub" / "data" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        of_datasets(count, file).to_parquet(path, batch_size=25)
    # Any number of classes per row, in the form of `datasets`.
    names = ["cat", "dog", "bird"]
    lists = datasets.Features({"image": datasets.Image(), "labels": datasets.Sequence(datasets.ClassLabel(names=names))})
    shown = {"image": [picture(row, 0) for row in range(4)], "labels": [[2, 0], [], [1], [0, 1, 2]]}
    (FOLDER / "lists").mkdir()
    datasets.Dataset.from_dict(shown).cast(lists).to_parquet(FOLDER / "lists/train.parquet")
    # Rows with a null list, a list with a null, 32-bit numbers, and non-nullable lists.
    lacking = pyarrow.array([[2], None, [0, None], []], pyarrow.list_(pyarrow.int32()))
    write("lists-lacking/train-0.parquet", pyarrow.table({"image": shown["image"], "label": lacking}))
    always = pyarrow.schema([("image", pyarrow.binary()), pyarrow.field("label", pyarrow.list_(pyarrow.int64()), nullable=False)])
    write("lists-always/train.parquet", pyarrow.table([shown["image"], shown["labels"]], schema=always), row_group_size=2)
    # Small pages, with each format version and compression, with and without a dictionary.
    table = pyarrow.table(rows(40, 0))
    for number, options in enumerate(
        [
            {"compression": "snappy"},
            {"compression": "zstd", "data_page_version": "2.0", "use_dictionary": False},
            {"compression": "none", "dictionary_pagesize_limit": 1000, "write_page_index": True},
        ]
    ):
        write(f"pages/train/{number:04}.parquet", table, row_group_size=25, data_page_size=500, write_batch_size=4, **options)
    # Missing values, and unexpected types.
    names = {"train-null": {"image": [picture(0, 0), None], "label": [None, 1]}}
    names["train-text"] = {"image": [picture(0, 0)], "label": ["cat"]}
    names["train-list"] = {"image": [picture(0, 0)], "label": [[0, 1]]}
    names["train-path"] = {"image": ["a.png"], "label": [0]}
    names["train-names"] = {"picture": [picture(0, 0)], "class": [0]}
    names["train-empty"] = {"image": pyarrow.array([], pyarrow.binary()), "label": pyarrow.array([], pyarrow.int64())}
    names["train-thumb"] = {"image": [{"thumb": picture(0, 0), "full": picture(0, 0)}], "label": [0]}
    names["train-struct"] = {"image": [picture(0, 0)], "label": [{"conf": 5, "id": 1}]}
    names["train-time"] = {"image": [picture(0, 0)], "label": pyarrow.array([0], pyarrow.timestamp("s"))}
    # A column with the name of another column's field.
    dotted = {"image.bytes": [picture(1, 9)], "image": [{"bytes": picture(0, 0)}], "label": [0]}
    names["train-dotted"] = dotted
    for name, columns in names.items():
        write(f"{name}/{name}.parquet", pyarrow.table(columns))
    write("train-gzip/train-gzip.parquet", pyarrow.table(rows(3, 0)), compression="gzip")


if __name__ == "__main__":
    main()
