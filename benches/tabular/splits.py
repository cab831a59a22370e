"""Splits of the tables into training and test rows, shared by peers.py and compare.py."""

import json
from pathlib import Path

TEST_FRACTION = 0.2
METRICS = {"classification": "accuracy", "regression": "R²"}


def read_index(folder, only=()):
    """Returns the entries of the index, or those with the names in `only`."""
    path = Path(folder) / "index.json"
    if not path.is_file():
        raise SystemExit(f"{path}: no such file; run tables.py {folder} first")
    index = json.loads(path.read_text())
    unknown = set(only) - {table["name"] for table in index}
    if unknown:
        raise SystemExit(f"--only: there are no tables {', '.join(sorted(unknown))} in {path}")
    return [table for table in index if not only or table["name"] in only]


def split_files(folder, table, seed):
    """Returns the paths of the training rows and the test rows."""
    split = Path(folder) / "splits" / table["name"] / str(seed)
    return split / "train.csv", split / "test.csv"


def write_split(folder, table, seed):
    """Writes the training rows and the test rows, which depend only on the table and the seed."""
    import pandas
    from sklearn.model_selection import train_test_split

    # Cells stay texts, so both files contain the same characters as the table.
    data = pandas.read_csv(Path(folder) / table["file"], dtype=str, keep_default_na=False)
    stratify = data[table["target"]] if table["task"] == "classification" else None
    parts = train_test_split(data, test_size=TEST_FRACTION, random_state=seed, stratify=stratify)
    for path, rows in zip(split_files(folder, table, seed), parts):
        path.parent.mkdir(parents=True, exist_ok=True)
        rows.to_csv(path, index=False)
