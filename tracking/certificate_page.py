"""A certificate as one page of HTML: no script, nothing loaded from elsewhere, readable on a phone and on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Json = Any

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #2563a8; }
@media (prefers-color-scheme: dark) { :root { --accent: #7ab3ee; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 46rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
p { margin: 0.5rem 0; }
.outcome { font-size: 1.1rem; padding: 0.75rem 1rem; border-left: 4px solid var(--accent); background: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.6rem 0.25rem 0; border-bottom: 1px solid var(--line); }
th, td { vertical-align: top; overflow-wrap: normal; }
td.number, th.number { text-align: right; }
td.number { white-space: nowrap; }
dl { display: grid; grid-template-columns: minmax(6rem, 2fr) 5fr; gap: 0.25rem 0.75rem; margin: 0.5rem 0; }
@media (max-width: 30rem) { table { font-size: 0.85rem; } }
@media (max-width: 30rem) { dl.long { grid-template-columns: 1fr; gap: 0; } dl.long dd { margin-bottom: 0.4rem; } }
dt { opacity: 0.75; }
dd { margin: 0; }
code { font: 0.85em/1.4 ui-monospace, monospace; }
svg { width: 100%; height: auto; max-width: 34rem; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.chosen { font-weight: 600; }
"""


NUMBER = ' class="number"'
UNBOUNDED = 2**63 - 1  # what stein.py says where no number of queries is enough


def certificate_page(document: Mapping[str, Json]) -> str:
    """The page of a certificate's document, as ``certificate.json`` holds it."""
    content = document["certificate"]
    parts = [
        _outcome(content),
        _section("What changed", _changes(content)),
        _section("What this does not guarantee", _list(content["not_guaranteed"])),
        _section("Request and data", _request(content)),
        _section("Proxy", _proxy(content["proxy"])),
        _section("How it was written into the model", _finalizer(content)),
        _section("Measured against a retrain", _retrain(content["retrain"])) if content["retrain"] else "",
        _section("What an attacker needs (Stein's bound)", _stein(content["stein"])),
        _section("Earlier requests on this model", _history(content["history"])) if content["history"] else "",
        _section("Class proportions", _classes(content["classes"])),
        _section("Identity", _identity(document)),
    ]
    title = f"Unlearning certificate: {content['outcome']}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _outcome(content: Mapping[str, Json]) -> str:
    request = content["request"]
    if content["outcome"] == "unlearned":
        said = f"{request['n_forget']} of {request['n_forget'] + request['n_retain']} training records were unlearned."
    else:
        said = f"Nothing was unlearned: {content['reason']}. The model is unchanged."
    return f'<p class="outcome">{escape(said)}</p>\n<p>Made {escape(content["made"]["time"])}</p>'


def _changes(content: Mapping[str, Json]) -> str:
    accuracy, divergence = content["accuracy"], content["divergence"]
    wrote = divergence["base_to_unlearned"]
    rows = [
        [
            name,
            _percent(accuracy["before"][kind]),
            _percent(accuracy["after"][kind]),
            _number(wrote[part]),
        ]
        for name, kind, part in (
            ("retained records", "retained", "retain"),
            ("forgotten records", "forgotten", "forget"),
            ("held-out data", "heldout", "heldout"),
        )
    ]
    return _table(["", "accuracy before", "after", "KL"], rows) + _paragraph(
        "KL(base||unlearned) in nats: how much the model's answers changed. 0 is not at all."
    )


def _request(content: Mapping[str, Json]) -> str:
    data, request, model = content["data"], content["request"], content["model"]
    return _pairs(
        {
            "model": model["kind"],
            "classes": model["n_classes"],
            "weights": model["n_weights"],
            "training records": data["n_train"],
            "held-out records": data["n_heldout"],
            "features": f"{data['n_features']}, {data['features']}",
            "asked for now": request["n_asked"],
            "named twice": request["n_repeated"],
            "forgotten before": request["n_already_forgotten"],
            "forgotten in all": request["n_forget"],
            "retained": request["n_retain"],
        }
    )


def _proxy(proxy: Mapping[str, Json]) -> str:
    pairs = _pairs(
        {
            "chosen": proxy["method"] or "none",
            "asked for": proxy["asked_for"],
            "why": proxy["why"],
            "eta_max": _number(proxy["eta_max"]),
            "eta": proxy["eta_reason"],
            "KL(p||P) before": _number(proxy["kl_net_proxy_before"]),
            "KL(p||P_r) after": _number(proxy["kl_net_proxy_after"]),
            "ridge": f"{proxy['ridge']:g} ({proxy['shrinkage']})",
            "cap": None if proxy["eta_max"] is None else _cap(proxy["cap"]),
        }
    )
    rows = [
        [
            c["method"],
            "yes" if c["admissible"] else "no",
            *map(_number, (c["eta_max"], c["kl_net_proxy_before"], c["loss"])),
        ]
        for c in proxy["candidates"]
    ]
    at = next((i for i, c in enumerate(proxy["candidates"]) if c["method"] == proxy["method"]), None)
    table = _table(["proxy", "admissible", "eta_max", "fit", "loss"], rows, at) + _paragraph(
        "Every proxy that was weighed. Fit: KL(p||P), its distance from the model in nats. Loss: KL(p||P_r) - "
        "KL(p||P), what the "
        "request takes away from the model in its eyes; admissible where that is above 0."
    )
    left_out = [f"{u['method']} cannot be used: {u['reason']}" for u in proxy["unusable"]]
    return pairs + _curve(proxy["h_curve"], proxy["eta_max"]) + table + "".join(map(_paragraph, left_out))


def _cap(cap: float | None) -> str:
    return "no limit" if cap is None else f"{cap:g}"


def _finalizer(content: Mapping[str, Json]) -> str:
    done = content["finalizer"]
    values: dict[str, Json] = {"finalizer": done["name"], "started from": content["model"]["start"]}
    if "ended" in done:
        values["ended"] = done["ended"]
    if done.get("best_epoch") is not None:
        watched, scores = done["watched"], done["scores"]
        values |= {
            "kept": f"epoch {done['best_epoch']} of {len(scores) - 1}",
            "KL(target||model) on watched rows": f"{_number(scores[0])} before, {_number(scores[done['best_epoch']])} after",
            "watched rows": f"{watched['n_forget']} forgotten, {watched['n_retain']} retained and held out",
            "learning rate": f"{done['optimization']['lr']:g}",
        }
    left = content["divergence"]["target_to_unlearned"]
    values["KL(target||unlearned)"] = ", ".join(f"{part} {_number(value)}" for part, value in left.items())
    return _pairs(values)


def _retrain(retrain: Mapping[str, Json]) -> str:
    said = (
        f"Trained again from scratch without the records, {retrain['epochs']} epochs at learning rate "
        f"{retrain['optimization']['lr']:g}; the floor is a second such model with another seed. KL(retrain||model), "
        "in nats."
    )
    rows, stein = [], []
    for check in retrain["checks"]:
        for name, kl in check["kl_retrain_to"].items():
            rows.append([f"{name} (seed {check['seed']})", *map(_number, (kl["forget"], kl["retain"], kl["heldout"]))])
        enough = check["stein"]["indistinguishable_at_0.001"]
        stein.append(
            [
                str(check["seed"]),
                _number(check["stein"]["n_f_at_0.001"]),
                str(check["n_forget"]),
                _number(check["bound"]["tight_bound"]) if check["bound"] else "-",
                _number(check["bound"]["measured"]) if check["bound"] else "-",
                {True: "too few", False: "perhaps enough", None: "not bounded"}[enough],
            ]
        )
    return (
        _paragraph(said)
        + _table(["model", "KL_f", "KL_r", "KL_t"], rows)
        + _paragraph("On forgotten (f), retained (r) and held-out (t) records.")
        + _table(["seed", "N_f", "|D_f|", "bound", "target", "the records are"], stein)
        + _paragraph(
            "N_f: label queries needed on forgotten records at error rate 0.001 to tell the unlearned model from "
            "this retrain, "
            "beside the number of those records. Bound and target: on KL(retrain||target) over all training records, "
            "and what it is."
        )
    )


def _stein(stein: Mapping[str, Json]) -> str:
    rates = [name for name in stein["least_queries"][0] if name != "kl"]
    rows = [[_number(row["kl"]), *[str(row[rate]) for rate in rates]] for row in stein["least_queries"]]
    below = stein["indistinguishable_on_forget_below_kl"]
    limits = ", ".join(f"{_number(below[rate])} (error {rate.removeprefix('at_')})" for rate in rates)
    said = (
        "Queries needed at least to tell the unlearned model from a retrained one that is so far away, for an "
        "attacker who sees "
        f"{stein['seen_by_attacker']}. The {stein['n_forget']} forgotten records are too few for that below a KL of "
        f"{limits}."
    )
    return _paragraph(said) + _table(["KL", *[f"error {rate.removeprefix('at_')}" for rate in rates]], rows)


def _history(history: Sequence[Mapping[str, Json]]) -> str:
    rows = [
        [
            str(e["number"]),
            e["time"],
            e["outcome"],
            str(e["n_new"]),
            str(e["n_forget"]),
            e["proxy"] or "none",
            e["certificate"][:12],
        ]
        for e in history
    ]
    return _table(["no.", "time", "outcome", "new", "in all", "proxy", "certificate"], rows)


def _classes(classes: Sequence[Mapping[str, Json]]) -> str:
    rows = [
        [c["name"], str(c["n_train"]), str(c["n_forget"]), _percent(c["share_before"]), _percent(c["share_after"])]
        for c in classes
    ]
    return _table(["class", "records", "forgotten", "share before", "after"], rows)


def _identity(document: Mapping[str, Json]) -> str:
    content, signature = document["certificate"], document["signature"]
    files = {f"{f['role']}: {f['path']}": _Code(f["sha256"]) for f in content["files"]}
    software = ", ".join(f"{name} {version}" for name, version in content["made"]["software"].items())
    return _pairs(
        {
            **files,
            "base model, content": _Code(content["model"]["base_sha256"]),
            "data, content": _Code(content["data"]["sha256"]),
            "digest": _Code(document["digest"]["value"]),
            "signature": "none"
            if signature is None
            else _Code(f"{signature['algorithm']} by {signature['public_key']}"),
            "seed": content["made"]["seed"],
            "software": f"Python {content['made']['python']}, {software}",
        },
        ' class="long"',
    ) + _paragraph(
        "This page is a view. What counts is certificate.json; check it with: unlearn verify certificate.json"
    )


class _Code(str):
    """Text that is shown letter by letter."""


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>\n"


def _list(items: Sequence[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"


def _pairs(values: Mapping[str, Json], style: str = "") -> str:
    cells = []
    for name, value in values.items():
        if value is None:
            continue
        text = f"<code>{escape(value)}</code>" if isinstance(value, _Code) else escape(_text(value))
        cells.append(f"<dt>{escape(name)}</dt><dd>{text}</dd>")
    return f"<dl{style}>\n" + "\n".join(cells) + "\n</dl>\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    def row(cells: Sequence[str], tag: str, style: str = "") -> str:
        shown = (f"<{tag}{NUMBER if i else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr{style}>{''.join(shown)}</tr>"

    body = "\n".join(row(cells, "td", ' class="chosen"' if i == chosen else "") for i, cells in enumerate(rows))
    return f'<div class="scroll"><table>\n{row(head, "th")}\n{body}\n</table></div>\n'


def _curve(points: Sequence[Sequence[float | None]], eta_max: float | None) -> str:
    """h(eta) as a drawing: below zero the shift is safe, and eta_max is where it ends."""
    known = [(p[0], p[1]) for p in points if p[0] is not None and p[1] is not None]
    if len(known) < 2:
        return ""
    width, height, left, top = 330.0, 150.0, 72.0, 10.0
    end = known[-1][0]
    low, high = min(0.0, *(h for _, h in known)), max(0.0, *(h for _, h in known))
    span = (high - low) or 1.0

    def at(eta: float, h: float) -> str:
        return f"{left + width * eta / end:.1f},{top + height * (high - h) / span:.1f}"

    zero, bottom = at(0, 0).split(",")[1], top + height
    path = " ".join(at(*point) for point in known)
    marks = [
        f'<line x1="{left}" y1="{zero}" x2="{left + width}" y2="{zero}" stroke="currentColor" stroke-opacity="0.4"/>',
        f'<polyline points="{path}" fill="none" stroke="var(--accent)" stroke-width="2"/>',
        f'<text x="{left - 6}" y="{top + 4}" text-anchor="end">{_number(high)}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">{_number(low)}</text>',
        f'<text x="{left}" y="{bottom + 18}">0</text>',
        f'<text x="{left + width}" y="{bottom + 18}" text-anchor="end">eta {end:g}</text>',
    ]
    if eta_max:
        x = at(eta_max, 0).split(",")[0]
        marks.append(
            f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="var(--accent)" stroke-dasharray="4 3"/>'
        )
    title = f"h over eta in nats: the shift is safe where it is at most 0; eta_max is {_number(eta_max)}"
    return (
        f'<svg viewBox="0 0 {left + width + 10:.0f} {bottom + 26:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(marks)}</svg>\n"
    )


def _number(value: float | int | None) -> str:
    if value is None:
        return "infinite or undefined"
    if value == UNBOUNDED:
        return "no number"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _text(value: Json) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
