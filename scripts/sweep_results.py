"""What a sweep found: the table on the terminal, results.csv and results.html."""
import csv
import html
import io
import json
import math

from report import COLOURS, STYLE, Axes, human, legend
from sweep_trials import seconds_text, write_whole

CURVES = 40  # more lines than this in one chart tell nothing: the best ones are drawn


def text_of(value):
    return value if isinstance(value, str) else json.dumps(value)


def finite(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


class Result:
    """One trial's row. `score` is what trials are compared by: the last validation loss, or, where
    nothing is evaluated, the loss of the last step; None until there is one."""

    def __init__(self, sweep, trial, state):
        self.trial, self.state = trial, state
        self.values = {key: trial.values.get(key) for key in sweep.axes}
        rows = trial.metrics.read()
        self.rows = [rows[step] for step in sorted(rows)]
        last = self.rows[-1] if self.rows else {}
        self.step, self.loss = last.get("step", 0), last.get("loss")
        self.validation = [(r["step"], r["validation_loss"]) for r in self.rows if finite(r.get("validation_loss"))]
        self.validation_loss = self.validation[-1][1] if self.validation else None
        self.score = self.validation_loss if self.validation else self.loss if finite(self.loss) else None
        self.seconds = sum(r.get("step_seconds") or 0 for r in self.rows)
        self.tokens = last.get("tokens", 0)
        self.code, self.error = trial.code(), trial.error()


def results(folder, running=()):
    """Of all trials; `running` ones are told apart from those that wait."""
    found = []
    for trial in folder.trials:
        state = trial.state()
        if state == "unfinished":
            state = "running" if trial in running else "stopped" if trial.metrics.read() else "waiting"
        found.append(Result(folder.sweep, trial, state))
    return found


def best(rows):
    """The finished trial with the lowest score, or None."""
    done = [r for r in rows if r.state == "finished" and r.score is not None]
    return min(done, key=lambda r: (r.score, r.trial.number), default=None)


def table(sweep, rows):
    winner = best(rows)
    head = ["trial", *sweep.axes, "state", "step", "loss", "validation", "time"]
    cells = []
    for r in rows:
        cells.append([r.trial.name + ("*" if r is winner else ""),
                      *["" if r.values[k] is None else text_of(r.values[k]) for k in sweep.axes], r.state, str(r.step),
                      f"{r.loss:.4f}" if finite(r.loss) else "-",
                      f"{r.validation_loss:.4f}" if r.validation else "-", seconds_text(r.seconds)])
    widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in [head, *cells]]
    for r in rows:
        if r.error:
            lines.append(f"trial {r.trial.name} {r.state}: {r.error}")
    if winner:
        values = " ".join(f"{k}={text_of(v)}" for k, v in winner.values.items() if v is not None)
        lines.append(f"best: trial {winner.trial.name}{' ' + values if values else ''}: loss {winner.score:.4f}, {winner.trial.output}")
    return "\n".join(lines)


def write_csv(folder, rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", *folder.sweep.axes, "state", "step", "loss", "validation_loss", "tokens", "seconds",
                     "exit_code", "error"])
    for r in rows:
        writer.writerow([r.trial.name, *["" if v is None else text_of(v) for v in r.values.values()], r.state, r.step,
                         "" if r.loss is None else r.loss, "" if r.validation_loss is None else r.validation_loss,
                         r.tokens, f"{r.seconds:.3f}", "" if r.code is None else r.code, r.error])
    write_whole(folder.path / "results.csv", text.getvalue())
    return folder.path / "results.csv"


# ---- results.html ---------------------------------------------------------------------------------

def label(result):
    values = " ".join(f"{k.split('.')[-1]}={text_of(v)}" for k, v in result.values.items() if v is not None)
    return f"{result.trial.name} {values}".strip()


def limits(values):
    """From the lowest to the highest, without the few that would flatten all the rest."""
    values = sorted(values)
    if not values:
        return 0.0, 1.0
    top = values[-1] if len(values) < 20 else values[int(0.98 * (len(values) - 1))]
    return values[0], max(top, values[0])


def curve_chart(title, curves):
    """curves: (result, [(x, y), …])."""
    curves = [(r, [(x, y) for x, y in points if finite(y)]) for r, points in curves]
    curves = [(r, points) for r, points in curves if points]
    if not curves:
        return ""
    curves.sort(key=lambda c: math.inf if c[0].score is None else c[0].score)
    shown = curves[:CURVES]
    low, high = limits([y for _, points in shown for _, y in points])
    axes = Axes(max(x for _, points in shown for x, _ in points), high, low)
    for i, (_, points) in enumerate(shown):
        axes.line([(x, min(y, high)) for x, y in points], COLOURS[i % len(COLOURS)], dots=len(points) < 30)
    note = f"<p>the best {CURVES} of {len(curves)}</p>" if len(curves) > CURVES else ""
    return f"<h2>{html.escape(title)}</h2>{note}{legend([label(r) for r, _ in shown])}{axes.svg()}"


def axis_chart(key, rows):
    """Final loss over the values of one key; numbers that span decades on a logarithmic axis."""
    points = [(r.values[key], r.score, r) for r in rows if r.values[key] is not None and r.score is not None]
    if len({text_of(v) for v, _, _ in points}) < 2:
        return ""
    numeric = all(finite(v) and not isinstance(v, bool) for v, _, _ in points)
    low, high = limits([y for _, y, _ in points])
    margin = 0.05 * (high - low) or 0.01
    if numeric:
        xs = [v for v, _, _ in points]
        log = min(xs) > 0 and max(xs) / min(xs) >= 20
        place = math.log10 if log else float
        axes = Axes(place(max(xs)), high + margin, low - margin, x_min=place(min(xs)),
                    x_text=lambda x: human(10**x if log else x))
        title = f"Final loss over {key}" + (" (logarithmic)" if log else "")
    else:
        names = sorted({text_of(v) for v, _, _ in points})
        axes = Axes(len(names) - 1, high + margin, low - margin,
                    ticks=[(i, name) for i, name in enumerate(names)])
        title = f"Final loss over {key}"

        def place(value):
            return names.index(text_of(value))
    for value, score, r in points:
        axes.dot(place(value), min(score, high + margin), COLOURS[0 if r.state == "finished" else 9], label(r) + f": {score:.4f}")
    return f"<h2>{html.escape(title)}</h2>{axes.svg()}"


def html_table(sweep, rows, winner):
    head = "".join(f"<th>{html.escape(h)}</th>" for h in ["trial", *sweep.axes, "state", "step", "loss", "validation", "time", "error"])
    body = []
    for r in rows:
        cells = [r.trial.name, *["" if v is None else text_of(v) for v in r.values.values()], r.state, r.step,
                 f"{r.loss:.4f}" if finite(r.loss) else "", f"{r.validation_loss:.4f}" if r.validation else "",
                 seconds_text(r.seconds), r.error]
        body.append(f"<tr{' class=best' if r is winner else ''}>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"


def write_html(folder, rows):
    sweep, winner = folder.sweep, best(rows)
    counts = \
        ", ".join(f"{sum(r.state == s for r in rows)} {s}" for s in dict.fromkeys(r.state for r in rows))
    title = html.escape(str(sweep.output))
    parts = [f"<h1>{title}</h1><p>{len(rows)} trials of {html.escape(str(sweep.config))}: {counts}</p>"]
    if winner:
        parts.append(f"<p><b>Best: {html.escape(label(winner))}, loss {winner.score:.4f}</b>, "
                     f"{html.escape(str(winner.trial.output))}</p>")
    parts += [html_table(sweep, rows, winner),
              curve_chart("Validation loss (nats a token) over steps", [(r, r.validation) for r in rows]),
              curve_chart("Training loss (nats a token) over steps", [(r, [(x["step"], x["loss"]) for x in r.rows]) for r in rows])]
    parts += [axis_chart(key, rows) for key in sweep.axes]
    style = STYLE + "table{border-collapse:collapse;font-size:13px}td,th{border-bottom:1px solid #ddd;padding:2px 8px;text-align:left}" \
        ".best{background:#e8f4ea}"
    write_whole(folder.path / "results.html",
                f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{style}</style>{''.join(parts)}")
    return folder.path / "results.html"
