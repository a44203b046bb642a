#!/usr/bin/env python3
"""Runs a compiler and fails where a kernel keeps in memory what belongs into registers.

    check_spills.py [--allow REGEX]... -- nvcc … -Xptxas=-v … -o kernel.o

The build runs every compilation of a CUDA source through it. What `ptxas -v` printed about each
kernel is taken out of the compiler's output and written beside the object, as <object>.ptxas, one
line a kernel and architecture: registers, shared bytes, stack bytes, spilled bytes, name. A spill
fails, and so does a stack frame: an array that is indexed by what the compiler does not know, or of
which a reference is taken. Kernels whose name matches an --allow may have both. The exit status is
the compiler's, or 1."""
import argparse
import re
import subprocess
import sys

COMPILING = re.compile(r"ptxas info\s*: Compiling entry function '(\S+)' for '(\S+)'")
PROPERTIES = re.compile(r"ptxas info\s*: Function properties for (\S+)")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info\s*: Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


class Kernel:
    def __init__(self, name, architecture):
        self.name, self.architecture = name, architecture
        self.registers = self.shared = self.stack = self.stores = self.loads = 0
        self.seen = False  # its spills

    def __str__(self):
        return (f"{self.architecture} registers {self.registers} shared {self.shared} "
                f"stack {self.stack} spilled {self.stores}+{self.loads} {self.name}")


def parse(text):
    """Returns the kernels that ptxas reported, and the lines that are not its reports."""
    kernels, rest = [], []
    current = None  # what a line of properties belongs to; None: a device function
    for line in text.splitlines():
        compiling, properties = COMPILING.search(line), PROPERTIES.search(line)
        spills, used = SPILLS.search(line), USED.search(line)
        if compiling:
            kernels.append(Kernel(*compiling.groups()))
        elif properties:
            current = kernels[-1] if kernels and kernels[-1].name == properties[1] else None
        elif spills:
            if current:
                current.stack, current.stores, current.loads = map(int, spills.groups())
                current.seen = True
        elif used:
            if kernels:
                kernels[-1].registers = int(used[1])
                shared = SHARED.search(line)
                kernels[-1].shared = int(shared[1]) if shared else 0
        elif not re.match(r"ptxas info\s*:", line):
            rest.append(line)
    return kernels, rest


def readable(names):
    """C++ names of mangled ones, where c++filt is at hand."""
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True,
                              check=True)
        return done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return names


def check(kernels, allowed, source):
    """Returns one line for each kernel that uses local memory or of which ptxas said nothing, or one
    where it said nothing at all."""
    if not kernels:
        return [f"{source}: ptxas reported no kernel; expected one at least, and -Xptxas=-v among the flags"]
    faults = []
    for kernel in kernels:
        name = kernel.name
        if not kernel.seen:
            faults.append(f"{source}: ptxas did not say whether {name} spills ({kernel.architecture})")
        elif any(re.search(a, name) for a in allowed):
            continue
        elif kernel.stores or kernel.loads:
            faults.append(f"{source}: {name} spills {kernel.stores} bytes to memory and loads "
                          f"{kernel.loads} on {kernel.architecture} (it uses {kernel.registers} "
                          "registers); hold less at once, or use fewer threads a block")
        elif kernel.stack:
            faults.append(f"{source}: {name} keeps {kernel.stack} bytes of arrays in memory on "
                          f"{kernel.architecture}; index them by constants, and choose between two by "
                          "a branch")
    return faults


def option(command, flag):
    return command[command.index(flag) + 1] if flag in command[:-1] else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--allow", action="append", default=[], metavar="REGEX")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no compiler command after --")
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    kernels, rest = parse(done.stdout)
    if rest:
        print("\n".join(rest), file=sys.stderr)
    if done.returncode:
        return done.returncode
    for kernel, name in zip(kernels, readable([k.name for k in kernels])):
        kernel.name = name
    target = option(command, "-o")
    if target:
        with open(target + ".ptxas", "w") as report:
            report.writelines(f"{kernel}\n" for kernel in kernels)
    faults = check(kernels, args.allow, option(command, "-c") or "compilation")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
