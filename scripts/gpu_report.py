#!/usr/bin/env python3
"""report.md and a calibrated hardware profile from the numbers that scripts/gpu_check.sh recorded.

    scripts/gpu_report.py OUT/report.json [--hardware configs/hardware]

Writes report.md beside report.json, and hardware.json if the part `device` measured. Standard
library only.
"""
import argparse
import json
import pathlib
import sys


def gb(value):
    return f"{value * 1e-9:.2f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def numbers(report, part):
    return report["parts"].get(part, {}).get("numbers") or {}


def device_lines(d):
    link, profile = d["link"], d["profile"]
    lines = ["", "## Copies", "", f"{link['copy_bytes'] / 2**20:.0f} MiB a copy, GB/s.", ""]
    lines += table(["", "to device", "to host"],
                   [["one way at a time", gb(link["h2d"]), gb(link["d2h"])],
                    ["both ways", gb(link["h2d_both"]), gb(link["d2h_both"])],
                    ["both ways under a GEMM", gb(link["h2d_gemm"]), gb(link["d2h_gemm"])]])
    slower = link["gemm_under_copies"] / link["gemm"] if link["gemm"] else 0
    lines += ["", f"A GEMM of size {link['gemm_size']} ({d['precision']}) reaches "
              f"{link['gemm'] * 1e-12:.2f} TFLOP/s alone and {100 * slower:.1f} % of that under copies; its "
              f"bits at other addresses and under copies are "
              f"{'the same' if link['gemm_bits_same'] else '**different**'}.",
              "", "## Device memory beside the arena", ""]
    lines += table(["after", "MiB"], [[phase, f"{size / 2**20:.1f}"]
                                      for phase, size in link["foreign_bytes"].items()])
    lines += ["", "## Kernels", "",
              f"One step; share of the roofline of profile {profile['name']} "
              f"({profile['peak_f32'] * 1e-12:.1f} TFLOP/s f32, {profile['peak_bf16'] * 1e-12:.1f} bf16, "
              f"{gb(profile['memory_bandwidth'])} GB/s).", ""]
    return lines + table(["op", "calls", "ms", "TFLOP/s", "GB/s", "share"],
                         [[op["op"], op["calls"], f"{1e3 * op['seconds']:.3f}",
                           f"{op['flops'] / op['seconds'] * 1e-12:.2f}", gb(op["bytes"] / op["seconds"]),
                           f"{100 * op['share_of_roofline']:.1f} %"]
                          for op in d["ops"] if op["seconds"] > 0])


def markdown(report):
    lines = ["# GPU check", "", f"Machine: {report['machine'] or 'unknown'}; backend {report['backend']}.", ""]
    lines += table(["part", "result", "s", ""],
                   [[name, r["status"], r["seconds"], r["detail"].replace("|", "/")]
                    for name, r in report["parts"].items()])
    slices = [(name, numbers(report, name)) for name in ("slice", "slice-small") if numbers(report, name)]
    if slices:
        lines += ["", "## Llama-8B-shaped slice", ""]
        lines += table(["", "device memory, GiB", "step, ms", "planned, ms", "tokens/s", "MFU"],
                       [[name, f"{s['device_bytes'] / 2**30:.2f}", f"{1e3 * s['seconds']:.1f}",
                         f"{1e3 * s['planned_seconds']:.1f}", f"{s['tokens_per_second']:.0f}",
                         f"{100 * s['mfu']:.1f} %"] for name, s in slices])
    if numbers(report, "device"):
        lines += device_lines(numbers(report, "device"))
    return "\n".join(lines) + "\n"


def profile(report, template):
    """A profile in the format of configs/hardware: what was measured in place of a template's."""
    d = numbers(report, "device")
    link, known = d["link"], d["profile"]
    where = f"measured by scripts/gpu_check.sh on {report['machine'] or d['device']}"
    values = {name: {"value": entry["value"], "source": f"carried over from {template.get('description', '')} "
                     f"{entry['source']}"} if isinstance(entry, dict) else entry
              for name, entry in template.items()}
    peak = known["peak_bf16"] if d["precision"] == "bf16" else known["peak_f32"]

    def put(name, value, source):
        values[name] = {"value": value, "source": source}

    values["description"] = f"{d['device']}: copies, GEMM, attention and reserve measured."
    for name in ("device_bytes", "peak_f32", "peak_bf16", "memory_bandwidth"):
        if known[name]:
            text = f"{known[name]}B" if name == "device_bytes" else (
                f"{int(known[name])}B/s" if name == "memory_bandwidth" else known[name])
            put(name, text, f"profile {known['name']} of the run, derived from the device's properties")
    reserve = max(link["foreign_bytes"].values())
    if reserve:
        put("reserve_bytes", f"{reserve}B", f"{where}: after everything had run")
    put("h2d_bandwidth", f"{int(link['h2d_gemm'])}B/s", f"{where}: both ways at once under a GEMM")
    put("d2h_bandwidth", f"{int(link['d2h_gemm'])}B/s", f"{where}: both ways at once under a GEMM")
    put("h2d_alone_bandwidth", f"{int(link['h2d'])}B/s", f"{where}: one way")
    put("d2h_alone_bandwidth", f"{int(link['d2h'])}B/s", f"{where}: one way")
    put("both_ways_bandwidth", f"{int(link['h2d_both'] + link['d2h_both'])}B/s", f"{where}: both ways at once")
    put("gemm_fraction", round(min(link["gemm"] / peak, 1.0), 4), f"{where}: GEMM of size {link['gemm_size']}")
    for op, name in (("attention", "attention_fraction"), ("attention_grad", "attention_backward_fraction")):
        for measured in d["ops"]:
            if measured["op"] == op and measured["seconds"] > 0:
                share = measured["flops"] / measured["seconds"] / peak
                put(name, round(min(share, 1.0), 4), f"{where}: one step")
    return values


def write(report, out, hardware):
    (out / "report.md").write_text(markdown(report))
    if not numbers(report, "device"):
        return
    name = "cpu" if report["backend"] == "cpu" else "h100-80"
    template = json.loads((hardware / f"{name}.json").read_text())
    (out / "hardware.json").write_text(json.dumps(profile(report, template), indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    default = pathlib.Path(__file__).resolve().parents[1] / "configs" / "hardware"
    parser.add_argument("--hardware", type=pathlib.Path, default=default)
    arguments = parser.parse_args()
    try:
        report = json.loads(arguments.report.read_text())
        write(report, arguments.report.parent, arguments.hardware)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{arguments.report}: {type(error).__name__}: {error}; expected what gpu_check.sh writes")


if __name__ == "__main__":
    main()
