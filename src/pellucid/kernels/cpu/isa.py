"""The CPU's instruction paths: which one this process uses, and how the generated code looks on each.

Sits below every generated kernel: `current()` names the path, `Isa` says how wide a vector is, how large the register
tile of the matrix product is, and what to tell LLVM. The choice is made once, from the features LLVM reports for the
host; settings().isa forces another, and one the host lacks is refused, never replaced. Each path is compiled for its
own baseline processor, not for the host, so a machine that can run a path tests what older machines will run.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from functools import cache, partial

import llvmlite.binding as llvm

from ...base.errors import DeviceError
from ...base.settings import settings


@dataclass(frozen=True)
class Isa:
    """One instruction path.

    vector: bytes of a vector register.
    rows, vectors: the register tile of the matrix product, `rows` x (`vectors` vectors of columns).
    machine, cpu: what to compile for (a value of `platform.machine()`, an LLVM processor name; "" is the baseline).
    needs: LLVM features the host must report; also switched on in the compiler.
    tiles: whether products of whole tiles of bfloat16 are one instruction (AMX).
    bf16: whether rounding to bfloat16 is one instruction.
    pairs: whether bfloat16 is multiplied in pairs, one instruction, and not as float32.
    dot8: whether sums of four products of int8 are one instruction (VNNI, which came before that for bfloat16).
    dot16: whether sums of two products of int16 are one instruction.
    fused: multiply-add is one instruction with one rounding.
    half: float16 conversions are instructions.
    """

    name: str
    vector: int
    rows: int
    vectors: int
    machine: str | None
    cpu: str
    needs: tuple[str, ...]
    tiles: bool = False
    bf16: bool = False
    pairs: bool = False
    dot8: bool = False
    dot16: bool = False
    fused: bool = True
    half: bool = True

    @property
    def is_broad(self) -> bool:
        """Whether tiles are four vectors across: on processors that have 2 MB of second-level cache."""
        return self.vectors == 4

    @property
    def features(self) -> str:
        """LLVM's feature string."""
        return ",".join(f"+{f}" for f in self.needs)


_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_AVX512BF16 = (*_AVX512, "avx512vnni", "avx512bf16")
_X86 = partial(Isa, machine="x86_64", dot16=True)
_SERVER = partial(_X86, cpu="x86-64-v4", bf16=True, dot8=True)

#: Best first, but for what `available` says. Tiles fill the registers: accumulators + one step of columns + a broadcast
#: row value. Intel's processors since those with AMX are faster in 6 x 4, which loads less for each sum; AMD's were
#: measured in 12 x 2.
ALL = (
    _SERVER("amx", 64, 6, 4, needs=(*_AVX512BF16, "amx-tile", "amx-bf16"), tiles=True, pairs=True),
    _SERVER("avx512bf16", 64, 12, 2, needs=_AVX512BF16, pairs=True),
    _SERVER("avx512fma", 64, 6, 4, needs=_AVX512BF16),
    _X86("avx512", 64, 12, 2, cpu="x86-64-v4", needs=_AVX512),
    _X86("avx2", 32, 6, 2, cpu="x86-64-v3", needs=_AVX2),
    Isa("neon", 16, 12, 2, machine="aarch64", cpu="generic", needs=("neon",)),
    Isa("portable", 16, 4, 2, machine=None, cpu="", needs=(), fused=False, half=False),
)
_BY_NAME = {isa.name: isa for isa in ALL}


@cache
def _host() -> tuple[str, frozenset[str]]:
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    features = frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
    return machine, features | {"neon"} if machine == "aarch64" else features


@cache
def _may_use_tiles() -> bool:
    """Asks Linux for the tile registers, whose content it keeps for those processes only that did, for all threads and
    children of this one   (Documentation/arch/x86/xstate.rst)."""
    if platform.system() != "Linux":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


def runs_here(isa: Isa) -> bool:
    """Whether the host has every instruction the path uses, and lets this process use it."""
    machine, features = _host()
    fits = isa.machine in (None, machine) and features.issuperset(isa.needs)
    return fits and (not isa.tiles or _may_use_tiles())


def _has_slow_pairs() -> bool:
    """Whether the host takes four times as long for a product of pairs as for one of float32: Intel's processors since
    Sapphire Rapids, to be known by their float16 and the lack of what AMD alone has. (Measured, 6/207: 5.3 and 1.3
    billion of them a second.)"""
    _, features = _host()
    return "avx512fp16" in features and "sse4a" not in features


def available() -> tuple[Isa, ...]:
    """The paths the host can run, best first."""
    slow = _has_slow_pairs()
    found = [isa for isa in ALL if runs_here(isa)]
    return tuple(sorted(found, key=lambda isa: ALL.index(isa) + 1.5 * (slow and isa.pairs and not isa.tiles)))


@cache
def named(name: str) -> Isa:
    """The path of that name. Raises DeviceError if the host lacks an instruction it needs."""
    isa = _BY_NAME.get(name)
    if isa is None or not runs_here(isa):
        names = ", ".join(i.name for i in available())
        raise DeviceError(
            "PELLUCID_ISA",
            "this processor does not have the instruction path",
            got=repr(name),
            expected=f"one of {names}",
            hint="unset PELLUCID_ISA to use the best one",
        )
    return isa


@cache
def current() -> Isa:
    """The path of this process: settings().isa where given, otherwise the best the host can run."""
    forced = settings().isa
    return available()[0] if forced is None else named(forced)
