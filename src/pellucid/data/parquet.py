"""Texts out of one column of a parquet file, a row a document, read a batch of rows at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..base.errors import DataError
from ..base.files import reading
from .optional import optional

_ROWS = 1 << 10


def read_parquet(path: Path, field: str) -> Iterator[tuple[str, float]]:
    """The texts of a column, and after each the share of the rows that have been read.

    Raises:
        DataError: pyarrow is missing; no parquet file, a damaged one, no such column, a column or row without text.
    """
    arrow = optional("pyarrow", package="pyarrow", path=str(path))
    parquet = optional("pyarrow.parquet", package="pyarrow", path=str(path))
    with reading(path) as file:
        try:
            found = parquet.ParquetFile(file, memory_map=False)
            schema, rows = found.schema_arrow, found.metadata.num_rows
            if field not in schema.names:
                got = ", ".join(schema.names) or "no columns"
                raise DataError(str(path), f"no column {field!r}", got=got, hint="name the column that holds the text")
            kind = schema.field(field).type
            text = kind.value_type if arrow.types.is_dictionary(kind) else kind
            if not any(test(text) for test in (arrow.types.is_string, arrow.types.is_large_string)):
                raise DataError(str(path), f"column {field!r} is not text", got=str(kind), expected="string")
            number = 0
            for batch in found.iter_batches(batch_size=_ROWS, columns=[field], use_threads=False):
                for value in batch.column(0).to_pylist():
                    number += 1
                    if value is None:
                        raise DataError(f"{path}: row {number}", f"no text in column {field!r}", got="null")
                    yield value, number / rows
        except DataError:
            raise
        except (arrow.ArrowException, ValueError, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(os.fspath(path), f"no parquet file, or a damaged one: {reason}") from error
    if not number:
        raise DataError(str(path), "no documents: the table has no rows")
