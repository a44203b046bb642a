#!/usr/bin/env python3
"""Writes OUTPUT/report.html from a run's metrics.jsonl and timeline.json: loss, throughput, memory
over one step stacked by class, lanes of one step. Self-contained, standard library only.

    scripts/report.py runs/quickstart

With --plan PLAN it writes PLAN's pictures beside it, as PLAN.html: memory of each tier over the planned
step, its lanes, and the fastest plan at each size of device memory. PLAN is what `train plan --pareto --out`
wrote.

    scripts/report.py --plan plan.json
"""
import argparse
import html
import json
import math
import pathlib
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 260, 70, 30, 12
COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5",
           "#9c6b4e", "#9498a0", "#1f4f8a", "#b8860b"]
STYLE = ("body{font:14px sans-serif;max-width:960px;margin:2em auto;color:#222}svg{width:100%}"
         "text{font-size:11px;fill:#555}.grid{stroke:#ddd}span{margin-right:1em}"
         "i{display:inline-block;width:10px;height:10px;margin-right:4px}h2{font-size:16px;margin-top:2em}")
LANES = ["compute", "host to device", "device to host", "communication"]


def read_metrics(path):
    """Rows by step; a row repeated after a resume replaces the earlier one."""
    rows = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            rows[row["step"]] = row
        except (ValueError, KeyError, TypeError):
            sys.exit(f"{path}:{number}: not a metrics line")
    return [rows[step] for step in sorted(rows)]


def human(value, unit=""):
    if unit == "B":
        for name, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if abs(value) >= size:
                return f"{value / size:.4g} {name}"
        return f"{value:.0f} B"
    return f"{value:.4g}{unit}"


class Axes:
    """A chart's frame. `x_text` writes the value of a tick; `ticks`, (x, text) each, replace the
    even ones."""

    def __init__(self, x_max, y_max, y_min=0.0, y_unit="", x_unit="", x_min=0.0, x_text=None, ticks=None):
        self.x_max, self.x_min, self.y_max, self.y_min = x_max, x_min, y_max, y_min
        if self.x_max <= self.x_min:
            self.x_max = self.x_min + 1.0
        if self.y_max <= self.y_min:
            self.y_max = self.y_min + 1.0
        self.parts = []
        x_text = x_text or (lambda x: human(x, x_unit))
        for i in range(5):
            y = self.y_min + (self.y_max - self.y_min) * i / 4
            self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{self.y(y):.1f}" y2="{self.y(y):.1f}" class="grid"/>'
                              f'<text x="{LEFT - 6}" y="{self.y(y) + 4:.1f}" text-anchor="end">{human(y, y_unit)}</text>')
        even = [self.x_min + (self.x_max - self.x_min) * i / 4 for i in range(5)]
        for x, text in ticks or [(x, x_text(x)) for x in even]:
            self.parts.append(f'<text x="{self.x(x):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(text)}</text>')

    def x(self, value):
        return LEFT + (WIDTH - LEFT - 20) * (value - self.x_min) / (self.x_max - self.x_min)

    def y(self, value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - self.y_min) / (self.y_max - self.y_min))

    def line(self, points, colour, dots=False):
        points = [(x, y) for x, y in points if y is not None and math.isfinite(y)]
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if dots:
            for x, y in points:
                self.dot(x, y, colour)

    def dot(self, x, y, colour, title=""):
        tip = f"<title>{html.escape(title)}</title>" if title else ""
        self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3" fill="{colour}">{tip}</circle>')

    def area(self, xs, low, high, colour, label):
        up = [f"{self.x(x):.1f},{self.y(v):.1f}" for x, v in zip(xs, high)]
        down = [f"{self.x(x):.1f},{self.y(v):.1f}" for x, v in zip(reversed(xs), reversed(low))]
        self.parts.append(f'<polygon points="{" ".join(up + down)}" fill="{colour}"><title>{html.escape(label)}</title></polygon>')

    def svg(self):
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(self.parts)}</svg>'


def legend(names):
    return "<p>" + " ".join(f'<span><i style="background:{COLOURS[i % len(COLOURS)]}"></i>{html.escape(name)}</span>'
                            for i, name in enumerate(names)) + "</p>"


def loss_chart(rows):
    losses = [r["loss"] for r in rows if r["loss"] is not None]
    validation = [(r["step"], r["validation_loss"]) for r in rows if r.get("validation_loss") is not None]
    every = losses + [v for _, v in validation]
    axes = Axes(rows[-1]["step"], max(every, default=1), min(every, default=0))
    axes.line([(r["step"], r["loss"]) for r in rows], COLOURS[0])
    axes.line(validation, COLOURS[2], dots=True)
    return "<h2>Loss (nats a token) over steps</h2>" + legend(["training"]) + \
        (f'<p><span><i style="background:{COLOURS[2]}"></i>validation, last {validation[-1][1]:.4f}</span></p>' if validation else "") + axes.svg()


def throughput_chart(rows):
    axes = Axes(rows[-1]["step"], max(r["tokens_per_second"] for r in rows))
    axes.line([(r["step"], r["tokens_per_second"]) for r in rows], COLOURS[0])
    seconds = sorted(r["step_seconds"] for r in rows)
    exposed = sorted(r["exposed_transfer_seconds"] for r in rows)
    return (f"<h2>Tokens a second over steps</h2><p>median step {seconds[len(seconds) // 2] * 1e3:.1f} ms, "
            f"median exposed transfer {exposed[len(exposed) // 2] * 1e3:.2f} ms</p>" + axes.svg())


def memory_chart(events, tier):
    samples = [(e["ts"] * 1e-3, e["args"]) for e in events if e.get("ph") == "C" and e["name"] == tier]
    if not samples:
        return ""
    names = sorted({n for _, v in samples for n in v}, key=lambda n: -max(v.get(n, 0) for _, v in samples))
    xs, series = [], {n: [] for n in names}
    for i, (at, values) in enumerate(samples):  # steps, not slopes
        if i:
            xs.append(at)
            for n in names:
                series[n].append(series[n][-1])
        xs.append(at)
        for n in names:
            series[n].append(values.get(n, 0))
    peak = max(sum(v.values()) for _, v in samples)
    axes = Axes(xs[-1], peak, y_unit="B", x_unit=" ms")
    low = [0] * len(xs)
    for i, n in enumerate(names):
        high = [a + b for a, b in zip(low, series[n])]
        axes.area(xs, low, high, COLOURS[i % len(COLOURS)], f"{n}: at most {human(max(series[n]), 'B')}")
        low = high
    return f"<h2>{tier.capitalize()} over one step, by class (planned; live bytes, peak {human(peak, 'B')})</h2>" + legend(names) + axes.svg()


def lane_chart(events, process, title):
    bars = [e for e in events if e.get("ph") == "X" and e["pid"] == process]
    if not bars:
        return ""
    end = max(e["ts"] + e["dur"] for e in bars)
    scale = (WIDTH - LEFT - 50) / end
    parts = []
    for i, lane in enumerate(LANES):
        parts.append(f'<text x="{LEFT + 24}" y="{30 + 34 * i}" text-anchor="end">{lane}</text>')
    for e in bars:
        parts.append(f'<rect x="{LEFT + 30 + e["ts"] * scale:.2f}" y="{14 + 34 * e["tid"]}" width="{max(0.3, e["dur"] * scale):.2f}" height="26" '
                     f'fill="{COLOURS[e["tid"]]}"><title>{html.escape(e["name"])} {e["dur"]:.0f} us</title></rect>')
    return (f"<h2>{title}: {end * 1e-3:.1f} ms</h2>"
            f'<svg viewBox="0 0 {WIDTH} {20 + 34 * len(LANES)}">{"".join(parts)}</svg>')


def plan_events(timeline):
    """The events of a Chrome trace, as a run's timeline.json has them."""
    for lane, bars in enumerate(timeline["lanes"]):
        for begin, end, name in bars:
            yield {"ph": "X", "pid": 0, "tid": lane, "name": name, "ts": begin * 1e6, "dur": (end - begin) * 1e6}
    for tier, samples in timeline["memory"].items():
        for seconds, classes in samples:
            yield {"ph": "C", "pid": 0, "name": tier, "ts": seconds * 1e6, "args": classes}


def pareto_chart(plan):
    """The curve, the lower bound below it, and the plans that neither stream nor choose."""
    table = plan["pareto"]
    rows = [r for r in table["rows"] if r["fits"]]
    points = [("this plan", plan["device_peak_bytes"], plan["step_seconds"], COLOURS[0]),
              ("all resident", table["all_resident"]["device_bytes"], table["all_resident"]["step_seconds"], COLOURS[4]),
              ("full recompute", table["full_recompute"]["device_bytes"], table["full_recompute"]["step_seconds"], COLOURS[2])]
    bound = [(r["device_budget_bytes"], 1e3 * r["bound_seconds"]) for r in rows if r["bound_seconds"] is not None]
    curve = [(r["device_budget_bytes"], 1e3 * r["step_seconds"]) for r in rows]
    every = curve + [(x, 1e3 * y) for _, x, y, _ in points]
    axes = Axes(max(x for x, _ in every) * 1.03, max(y for _, y in every) * 1.05, x_unit="B", y_unit=" ms")
    axes.line(bound, COLOURS[9])
    axes.line(curve, COLOURS[0], dots=True)
    for name, x, y, colour in points:
        axes.dot(x, 1e3 * y, colour, f"{name}: {human(x, 'B')}, {1e3 * y:.4g} ms")
    key = [(n, c, f"{n} {human(x, 'B')}, {1e3 * y:.4g} ms") for n, x, y, c in points]
    key.append(("bound", COLOURS[9], "no plan can be faster"))
    text = " ".join(f'<span><i style="background:{c}"></i>{html.escape(t)}</span>' for _, c, t in key)
    cells = "".join(
        f"<tr><td>{human(r['device_budget_bytes'], 'B')}<td>{1e3 * r['step_seconds']:.2f} ms"
        f"<td>{human(r['host_bytes'], 'B')}<td>{r['streamed']}<td>{r['recomputed']}" for r in rows)
    return (f"<h2>Step time of the fastest plan over device memory</h2><p>{text}</p>{axes.svg()}"
            f"<table><tr><th>device memory<th>step<th>host memory<th>streamed<th>recomputed{cells}</table>")


def plan_page(path):
    try:
        plan = json.loads(path.read_text())["report"]
        events = list(plan_events(plan["timeline"]))
    except (OSError, ValueError, KeyError, TypeError):
        sys.exit(f"{path}: not a plan with pictures; expected what train plan --pareto --out {path} writes")
    bound = "" if plan["bound_seconds"] is None else \
        f", no plan can be faster than {1e3 * plan['bound_seconds']:.2f} ms (gap {100 * plan['gap']:.2f} %)"
    head = (f"<p>{plan['ranks']} ranks on {html.escape(plan['profile'])}, {plan['tokens_per_step']} tokens a step: "
            f"{1e3 * plan['step_seconds']:.2f} ms{bound}; exposed transfer {1e3 * plan['exposed_transfer_seconds']:.2f} ms; "
            f"MFU {100 * plan['mfu']:.1f} %; arenas: device {human(plan['device_peak_bytes'], 'B')}, "
            f"host {human(plan['host_peak_bytes'], 'B')}</p>")
    pareto = pareto_chart(plan) if "pareto" in plan else \
        "<h2>Step time of the fastest plan over device memory</h2><p>Not planned; train plan --pareto --out does.</p>"
    title = html.escape(str(path))
    return (f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>" + head +
            memory_chart(events, "device memory") + memory_chart(events, "host memory") +
            lane_chart(events, 0, "Lanes of one step, planned") + pareto)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path, nargs="?", help="a run's output folder")
    parser.add_argument("--plan", type=pathlib.Path, help="a plan file instead")
    args = parser.parse_args()
    if (args.plan is None) == (args.output is None):
        parser.error("one of a run's output folder and --plan PLAN")
    if args.plan is not None:
        page = plan_page(args.plan)
        target = args.plan.with_suffix(".html")
        target.write_text(page)
        print(f"report: {target}")
        return
    metrics = args.output / "metrics.jsonl"
    if not metrics.is_file():
        sys.exit(f"{metrics}: no such file; expected the output folder of a run")
    rows = read_metrics(metrics)
    if not rows:
        sys.exit(f"{metrics}: holds no step yet")
    body = [loss_chart(rows), throughput_chart(rows)]
    timeline = args.output / "timeline.json"
    if timeline.is_file():
        events = json.loads(timeline.read_text())["traceEvents"]
        body += [memory_chart(events, "device memory"), memory_chart(events, "host memory"),
                 lane_chart(events, 0, "Lanes of one step, planned"), lane_chart(events, 1, "Lanes of one step, measured")]
    page = (f"<!doctype html><meta charset=utf-8><title>{html.escape(str(args.output))}</title><style>{STYLE}</style>"
            f"<h1>{html.escape(str(args.output))}</h1><p>{len(rows)} steps, last loss {rows[-1]['loss']}</p>" + "".join(body))
    target = args.output / "report.html"
    target.write_text(page)
    print(f"report: {target}")


if __name__ == "__main__":
    main()
