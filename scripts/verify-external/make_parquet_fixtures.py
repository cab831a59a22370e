"""Writes the Parquet files of nn/tests/data: python make_parquet_fixtures.py FOLDER. Needs pyarrow."""

import datetime
import decimal
import pathlib
import sys

import pyarrow
import pyarrow.parquet

ROWS = 6


def types():
    """Returns a table with a column of each type, and three missing cells in the second row."""
    start = datetime.datetime(2024, 3, 1)
    days = [start + datetime.timedelta(days=row) for row in range(ROWS)]
    return pyarrow.table(
        {
            "whole": pyarrow.array([1, None, 3, 4, 5, 6], pyarrow.int64()),
            "half": pyarrow.array([0.5, float("nan"), 1.5, 2.0, 2.5, 3.0], pyarrow.float32()),
            "word": pyarrow.array(["red", None, "blue", "red", "blue", "red"]).dictionary_encode(),
            "flag": pyarrow.array([row % 2 == 0 for row in range(ROWS)]),
            "day": pyarrow.array([day.date() for day in days], pyarrow.date32()),
            "at": pyarrow.array([day + datetime.timedelta(hours=6) for day in days], pyarrow.timestamp("ms")),
            "nanos": pyarrow.array([day + datetime.timedelta(hours=18) for day in days], pyarrow.timestamp("ns")),
            "price": pyarrow.array([decimal.Decimal("12.50") + row for row in range(ROWS)], pyarrow.decimal128(10, 2)),
            "small": pyarrow.array([3, 1, 4, 1, 5, 9], pyarrow.int8()),
            "answer": pyarrow.array(["yes", "no"] * (ROWS // 2)),
        }
    )


def nested():
    """Returns a table with a column of lists."""
    return pyarrow.table({"list": [[1, 2], [3]], "answer": ["yes", "no"]})


def main():
    folder = pathlib.Path(sys.argv[1])
    pyarrow.parquet.write_table(types(), folder / "types.parquet", row_group_size=4, compression="snappy")
    pyarrow.parquet.write_table(nested(), folder / "nested.parquet", compression="zstd")


if __name__ == "__main__":
    main()
