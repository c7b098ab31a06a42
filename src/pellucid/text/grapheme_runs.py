"""How each character of Unicode 17.0 joins others. Written by `python -m tests.repo.grapheme_runs --write`.

`RUNS` is a row of letters, each followed by the length of its run where that isn't 1, from U+0000 up to the last
character that is something (Unicode Standard Annex 29, tables 2 and 1c): c Control, CR or LF; p Prepend; m SpacingMark;
z ZWJ; k, e, x Extend, of which k links Indic consonants, and e may stand between them; i such a consonant; l, v, t, s
Hangul (L, V, T, LV or LVT); r Regional_Indicator; d Extended_Pictographic; - anything else.
"""

RUNS = (
    "c32-95c33-9d-3cd-593e112-275e7-263e45-e-e2-e2-e-56p6-10e11-c-46e21-16e-101e7p-e6-2e2-e4-33p-e-30e27-91e11-58e9"
    "-9e-24e4-e9-e3-e5-43e3-52p2-5e9-42e24pe32m-17i37eme-m3e8m4km2-e7i8-2e2-20i8-em2-17i20-i7-i-3i4-2e-em2e4-2m2-2m"
    "2k-9e-4i2-i-2e2-12i2-12e-2e2m-56e-m3e2-4e2-2e3-3e-30e2-3e-11e2m-17i20-i7-i2-i5-2e-m3e5-e2m-m2k-20e2-21ie6-em2-"
    "17i20-i7-i2-i5-2e-e2me4-2m2-2m2k-7e3-4i2-i-2e2-13i-16e-59emem2-3m3-m3e-9e-40em3e-16i20-i16-2e-e3m4-e3-e3k-7e2-"
    "i3-7e2-29em2-56e-me2mem2-e3-e4-7e2-11e2-15m-12e2m2-17i38e2-em2e4-m3-m3kp-8e-10e2-29em2-70e-4em2e3-e-m7e-18m2-6"
    "1e-me7-12e8-98e-me9-11e7-73e2-27e-e-e-4m2-49e14me5-e2-5e11-e36-9e-57i43-2e4me6-kem2e2i-16i6m2e2i4e3i-3i2-7i3e4"
    "i13e-me2-6ei-14e-98l96v72t88-349e3-946e4-28e3-29e2-30e2-12i52e2me7m8em2e9ke-9e-45e3ce-117e2-34e-118e3m4e2m3-4m"
    "2em6e3-219e2m2e-4i53meme7-k-e-2e8m6e10-2e-48e46-2e12-20e4m-6i2-6i33e10m4e2ki8-30e9-12e2mi30me4m2e3ke2i2-11i3-4"
    "0eme2m3eme5-48m8e8m2e2-152e3-e13me7-4e-6e-2me2-198e64-523cxzc2-24c7-13d-12d-22c16-96e33-49d-22d-90d6-15d2-367d"
    "2-12d-166d-25d11-4d3-199d-231d2-10d-9d-58d4-d5-9d-2d-2d2-2d-4d-2d-d2-2d-3d-3d2-8d3-5d-d-5d12-11d2-2d-d2-d-18d-"
    "2d2-18d6-d-d2-3d2-5d-2d2-4d2-11d2-5d2-2d-5d2-d-d2-20d2-5d6-d4-2d-4d-2d-2d6-d-2d-d-d-6d-3d-6d-10d2-15d-2d-4d-d-"
    "4d3-d-11d2-48d3-9d-14d-14d-372d2-463d3-19d2-51d-4d-409e3-141e-96e32-554e6d-12d-91e2-508d-d-29653e4-e10-32e2-80"
    "e2-272e-3e-4e-23m2e2m-4e-83m2-50m16e2-26e18-13e-38e8-25e11me-12l29-3e3m-5i3-3i36em2e4m2e2m2k-31i5e-i9-10i5-42e"
    "6m2e2m2e2-12e-8em-18i16-i3-6i-e-i2-48e-e3-2e2-5e2-e-30i11me2m2-5mk-201i27-8m2em2em2-me-18s11172-12v23-4t49-899"
    "4e-737e16-16e16-207c-158e2-80c12-513e-226e-149e5-1669ie3-e2-5e4i4-i3-i29-2e3-4k-165e2-573e4-65e5-317e2-77e6-70"
    "e11-49e4-122mem-53e15-41e-2e2-10e3m-45m3e4m2e2-2p-4e-10p-50e3i36e5me6ke-15im2i-43e-12e2m-48m3e9me-p2-5e4-me-92"
    "m3e3m2e4-6e-2e-157em3e8-21e2m2-55e2-emem4-2m2-2m2e-9e-10m2-2e7-3e5-11i10-i-2i-i38-2em2e6-e-2e-e3m-m2e2kpe-14e2"
    "-82m3e8m2e3me-23e-81em2e6mem2eme2me2-235em2e4-2m4e2me2-27e2-82m3e8m2eme2-106emem2e8-101eme-2e4me5-256m3e9me2-1"
    "97i7-2i-2i8-i2-i24em5-m2-2e3kpmpme-141m3e4-2e2m4e-3m-27ie10i40e6m-e4-8k-8ie6m2e3i40p6e13mek-198eme3mem-199me7-"
    "e6me-82e22-me7me2me2-122e6-3e-e2-e7pe-66m5-e2-m2eme-347e2m2-9e2pmi13-i34m2e5-3m2e2k-23e-5333c16e-6e15-11464e12"
    "m3e3-2496e5-59e7-556v-3v4-484e-m55-7e4-81e-11e2-19627e2-c4-4700e46-2e23-542e5-3e6c8e8-2e7-30e4-148e3-1979e55-4"
    "e50-8e-14e-22e5-e15-1360e7-e17-2e7-e2-e5-100e-160e7-375e-61e4-508e4-254e2-243e-2e-7e2-5e-474e7-109e7-1721d-39d"
    "4-100d12-15d2-15d-14d2-37d10-112d2-12d2-14d-2d10-19d56r26-d15-10d-20d-2d9-d4-9d23-6d188-2d112-2d2-d3-2d83-2d3-"
    "d4e5d254-d63-11d6-d24-7d2-2d8-12d-2d4-2d-4d2-13d2-2d-8d2-9d-5d3-12d3-8d3-2d-d-4d-6d-3d-6d86-48d70-5d8-2d17-3d-"
    "d6-2d13-218d38-12d4-56d8-10d6-40d8-30d2-12d4-2d14-9d39-12d47-d10-d185-88d8-14d146-256d1022-786434c32e96c128e24"
    "0c3600"
)
