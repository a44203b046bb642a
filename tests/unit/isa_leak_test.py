#!/usr/bin/env python3
"""Objects compiled for a wide instruction set may give the linker only functions of their own
namespace: of an inline function or template of a shared header the linker keeps any one copy, and a
machine without that instruction set would die in it.

usage: isa_leak_test.py OBJECT…   (…/kernels_cpu_<isa>.dir/…)
"""
import re
import subprocess
import sys

DATA = ("DW.ref.", "__odr_asan.")  # pointers for unwinding, marks of AddressSanitizer: no code


def leaks(lines, isa):
    """Defined symbols that other objects could see or share, outside spillway::cpu::<isa>."""
    found = []
    for line in lines:
        match = re.match(r"[0-9a-f]+ (\S) (.*)", line)
        if not match:
            continue
        kind, name = match.groups()
        if name.startswith(DATA):
            continue
        if kind in "WwVvuC" or (kind.isupper() and not name.startswith(f"spillway::cpu::{isa}::")):
            found.append(f"{kind} {name}")
    return found


def self_check():
    ok = ["0000 T spillway::cpu::avx2::gelu(K const&)", "0010 t (anonymous)::f()", "U sqrtf",
          "0000 V DW.ref.__gxx_personality_v0"]
    bad = ["0000 W spillway::Dims::count() const", "0000 T spillway::cpu::gelu(K const&)",
           "0000 V guard", "0000 T spillway::cpu::avx512::gelu(K const&)"]
    assert leaks(ok, "avx2") == [], leaks(ok, "avx2")
    assert len(leaks(bad, "avx2")) == len(bad), leaks(bad, "avx2")


def main(objects):
    self_check()
    if not objects:
        sys.exit("no objects given")
    failed = False
    for path in objects:
        isa = re.search(r"kernels_cpu_(\w+)\.dir", path).group(1)
        text = subprocess.run(["nm", "-C", "--defined-only", path], check=True,
                              capture_output=True, text=True).stdout
        for leak in leaks(text.splitlines(), isa):
            print(f"{path}: {leak}")
            failed = True
    sys.exit(1 if failed else 0)


main(sys.argv[1:])
