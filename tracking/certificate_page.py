"""A certificate as one page of HTML: no script, nothing loaded from elsewhere, readable on a phone and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracking.html import Html, asset, document, joined, tag
from unlearn_core.audit.stein import UNBOUNDED, stein_in_words
from unlearn_core.forgetting.audit_block import RATES, passes
from unlearn_core.forgetting.certificate import NOT_UNLEARNED, NOTHING, UNLEARNED

Json = Any


def certificate_page(certificate: Mapping[str, Json]) -> str:
    """The page of a certificate's document, as ``certificate.json`` holds it."""
    content = certificate["certificate"]
    sections = {
        "Verdict": _verdict(content.get("verdict")),
        "What changed": _changes(content),
        "Can the records be told by their loss?": _attack(content.get("attack"), content["retrain"]),
        "How close to a retrain": _closeness(content.get("closeness")),
        "What this does not guarantee": [tag("ul", *(tag("li", said) for said in content["not_guaranteed"]))],
        "Request and data": [_request(content)],
        "What kind of request it is": _kind(content.get("kind")),
        "Method": _proxy(content["proxy"]),
        "How it was written into the model": [_finalizer(content)],
        "Measured against a retrain": _retrain(content["retrain"]) if content["retrain"] else [],
        "Can a trained attacker tell it from a retrain?": _audit(content.get("audit")),
        "What an attacker needs (Stein's bound)": _stein(content["stein"]),
        "Earlier requests on this model": _history(content["history"]) if content["history"] else [],
        "Class proportions": [_classes(content["classes"])],
        "Identity": _identity(certificate),
    }
    title = f"Unlearning certificate: {content['outcome']}"
    shown = [tag("section", tag("h2", name), joined(parts)) for name, parts in sections.items() if parts]
    return document(title, asset("certificate.css"), [joined([tag("h1", title), *_outcome(content), *shown])])


def _outcome(content: Mapping[str, Json]) -> list[Html]:
    request = content["request"]
    records = f"{request['n_forget']} of {request['n_forget'] + request['n_retain']} training records"
    said = {
        UNLEARNED: f"{records} were unlearned.",
        NOT_UNLEARNED: f"Not unlearned, though {records} were to be: {content['reason']}.",
        NOTHING: f"Nothing was unlearned: {content['reason']}. The model is unchanged.",
    }[content["outcome"]]
    warnings = [tag("p", f"Warning: {warning}.") for warning in content.get("warnings", ())]
    return [tag("p", said, class_="outcome"), *warnings, tag("p", f"Made {content['made']['time']}")]


def _verdict(verdict: Mapping[str, Json] | None) -> list[Html]:
    if verdict is None:
        return []
    said = [tag("p", f"The rule: {verdict['rule']}. Found: {verdict['why']}.")]
    named = (("of this request", verdict["records"]), ("forgotten in all", verdict["all_records"]))
    rows = [
        [f"{p['n_records']} records {name}", *_numbers(p, "asked", "left"), _percent(p["share"])]
        for name, p in named
        if p is not None
    ]
    if rows:
        explained = "KL(asked for||base) and KL(asked for||model) on the records in nats; the way is what lies between."
        said += [_table(["", "asked for", "left", "of the way"], rows), tag("p", explained)]
    if losses := verdict["losses"]:
        heads = {"before": "mean loss before", "after": "after", "heldout": "of held-out rows"}
        if losses.get("heldout_after") is not None:
            heads["heldout_after"] = "of those after"
        heads["margin"] = "two standard errors"
        cells = ["-" if losses[name] is None else _numbers(losses, name)[0] for name in heads]
        said.append(_table(list(heads.values()), [cells]))
    return said


def _attack(attack: Mapping[str, Json] | None, retrain: Mapping[str, Json] | None) -> list[Html]:
    if attack is None:
        return []
    if attack.get("before") is None:
        return [tag("p", f"{str(attack['why']).capitalize()}.")]
    checks = retrain["checks"] if retrain else ()
    retrains = [(f"a retrain (seed {check['seed']})", check["attack"]) for check in checks if check.get("attack")]
    found = [("the base", attack["before"]), ("the model now", attack["after"]), *retrains]
    rows = [[name, *_numbers(one, "auc", "from_chance", "balanced_accuracy")] for name, one in found]
    explained = (
        f"AUC: {attack['what']}. {attack['n_records']} records, {attack['n_heldout']} held-out rows, weighted to the "
        f"records' classes; by chance it lies up to {_number(attack['by_chance'])} from 0.5. Accuracy: of the best "
        "threshold in either direction. A retrain need not be at chance: only what lies beyond it tells that the records "
        "were there."
    )
    return [_table(["", "AUC", "from chance", "accuracy"], rows), tag("p", explained)]


def _changes(content: Mapping[str, Json]) -> list[Html]:
    accuracy, changed = content["accuracy"], content["divergence"]["base_to_unlearned"]
    parts = (
        ("retained records", "retained", "retain"),
        ("forgotten records", "forgotten", "forget"),
        ("held-out data", "heldout", "heldout"),
    )
    rows = [
        [name, _percent(accuracy["before"][kind]), _percent(accuracy["after"][kind]), _number(changed[part])]
        for name, kind, part in parts
    ]
    return [
        _table(["", "accuracy before", "after", "KL"], rows),
        tag("p", "KL(base||unlearned) in nats: how much the model's answers changed. 0 is not at all."),
    ]


def _request(content: Mapping[str, Json]) -> Html:
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


def _proxy(proxy: Mapping[str, Json]) -> list[Html]:
    cap = "no limit" if proxy["cap"] is None else f"{proxy['cap']:g}"
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
            "cap": None if proxy["eta_max"] is None else cap,
        }
    )
    candidates = proxy["candidates"]
    if not candidates:
        return [pairs]
    rows = [
        [c["method"], "yes" if c["admissible"] else "no", *_numbers(c, "eta_max", "kl_net_proxy_before", "loss")]
        for c in candidates
    ]
    chosen = next((i for i, c in enumerate(candidates) if c["method"] == proxy["method"]), None)
    explained = (
        "Every proxy that was weighed. Fit: KL(p||P), its distance from the model in nats. Loss: KL(p||P_r) - KL(p||P), "
        "what the request takes away from the model in its eyes; admissible where that is above 0. Where eta is 1 by "
        "construction, that and the curve of h say nothing of how good the proxy is."
    )
    return [
        pairs,
        *_curve(proxy["h_curve"], proxy["eta_max"]),
        _table(["proxy", "admissible", "eta_max", "fit", "loss"], rows, chosen),
        tag("p", explained),
        *(tag("p", f"{u['method']} cannot be used: {u['reason']}") for u in proxy["unusable"]),
    ]


def _finalizer(content: Mapping[str, Json]) -> Html:
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
    if left := content["divergence"]["target_to_unlearned"]:
        values["KL(target||unlearned)"] = ", ".join(f"{part} {_number(value)}" for part, value in left.items())
    if prepared := content.get("prepared"):
        values["prepared"] = f"{prepared['made']}, state {prepared['sha256']}"
    return _pairs(values)


def _kind(kind: Mapping[str, Json] | None) -> list[Html]:
    if kind is None:
        return []
    said = tag("p", f"{str(kind['kind']).capitalize()}: {kind['why']}.")
    if not kind["tests"]:
        return [said]
    rows = [[test["name"], *_numbers(test, "statistic", "p_value", "adjusted")] for test in kind["tests"]]
    explained = (
        "The records beside held-out rows, which the model never saw. Adjusted: for the number of tests, by Holm."
    )
    return [said, _table(["compared", "statistic", "p-value", "adjusted"], rows), tag("p", explained)]


def _closeness(closeness: Mapping[str, Json] | None) -> list[Html]:
    if closeness is None:
        return []
    if closeness["after"] is None:
        return [tag("p", f"{closeness['why'].capitalize()}.")]
    rows = [
        [name, *_numbers(closeness[when], "estimate", "low", "high"), str(closeness[when]["queries"])]
        for name, when in (("the base", "before"), ("the unlearned model", "after"))
    ]
    said = (
        "KL(retrain||model) on the records in nats, estimated from held-out rows without a retrain, with an interval of "
        "90 %; it stands or falls with the records being like held-out rows. It is of a retrain from other initial weights: "
        "one that starts as the base did is closer, and for it only the upper end holds. N: label queries, drawn at random, "
        "that an attacker needs at least to tell the model from a retrain at error 0.001, by Stein for the upper end."
    )
    return [_table(["", "KL_f", "from", "to", "N"], rows), tag("p", said)]


def _retrain(retrain: Mapping[str, Json]) -> list[Html]:
    said = (
        f"Trained again from scratch without the records, {retrain['epochs']} epochs at learning rate "
        f"{retrain['optimization']['lr']:g}; the floor is a second such model with another seed. KL(retrain||model), "
        "in nats."
    )
    models, queries, verdicts = [], [], []
    for check in retrain["checks"]:
        for name, kl in check["kl_retrain_to"].items():
            models.append([f"{name} (seed {check['seed']})", *_numbers(kl, "forget", "retain", "heldout")])
        stein, bound = check["stein"], check["bound"]
        bounds = _numbers(bound, "tight_bound", "measured") if bound else ["-", "-"]
        queries.append([str(check["seed"]), _number(stein["n_f_at_0.001"]), str(check["n_forget"]), *bounds])
        verdicts.append(tag("p", f"Seed {check['seed']}. {stein_in_words(stein, check['n_forget'])}."))
    explained = (
        "N_f: label queries needed on forgotten records at error rate 0.001 to tell the unlearned model from this retrain, "
        "beside the number of those records. Bound and target: on KL(retrain||target) over all training records, and what "
        "it is."
    )
    return [
        tag("p", said),
        _table(["model", "KL_f", "KL_r", "KL_t"], models),
        tag("p", "On forgotten (f), retained (r) and held-out (t) records."),
        *verdicts,
        _table(["seed", "N_f", "|D_f|", "bound", "target"], queries),
        tag("p", explained),
    ]


def _audit(audit: Mapping[str, Json] | None) -> list[Html]:
    if audit is None:
        return []
    shadows, kinds, rows = audit["shadows"], ("forget", "retain", "test"), []
    for name, said in (("unlearned", "unlearned"), ("base", "not unlearned"), ("floor", "two retrains")):
        found, klom = audit["results"][name]["ulira"], audit["results"][name]["klom"]
        value, low, high = found["auc"]
        rates = [_percent(found[rate][0]) for rate in RATES]
        points = ["-" if klom[kind] is None else _number(klom[kind]["mean"]) for kind in kinds]
        rows.append([said, f"{value:.3f}", f"{low:.3f} to {high:.3f}", *rates, *points])
    made = f"each unlearned by {audit['method']}" if audit["method"] else "each left as it was, like this one"
    if audit["method"] and audit["left_alone"]:
        made += f" ({audit['left_alone']} of them, of which it made nothing, count as they were)"
    held = f"At chance: the interval of AUC holds 0.5. By one answer to one record, {shadows} shadows do not tell them apart"
    caught = (
        "Told apart: the interval of AUC lies above 0.5, so that networks unlearned like this do not pass for retrains"
    )
    said = (
        f"Trained with the records: {shadows} networks, {audit['epochs']} epochs at learning rate "
        f"{audit['optimization']['lr']:g}, {made}. Trained without them: {shadows} more. An attacker who knows the others "
        "sees one network's answer to one record and says of which kind it is. "
        f"This is an audit of {audit['of']}."
    )
    asked = audit["rows"]
    explained = (
        "AUC: how often the attacker (U-LiRA) ranks the two kinds right, with a 95 % interval; 0.5 is chance. At 1 % and at "
        "0.1 %: the share of answers that are recognised if so many of the retrains' are taken for them; of few answers, if "
        "none is. KLOM: how far their answers are distributed from those of retrains, in nats, the mean over "
        f"{asked['forget']} forgotten (f), {asked['retain']} retained (r) and {asked['test']} held-out (t) records; it "
        "means something only beside that of two retrains. "
        + "; ".join(f"{name}: {definition}" for name, definition in audit["definitions"].items())
        + "."
    )
    head = ["beside a retrain", "AUC", "95 %", *(f"at {rate}" for rate in RATES.values()), "KLOM_f", "KLOM_r", "KLOM_t"]
    return [
        tag("p", f"{held if passes(audit) else caught}."),
        _table(head, rows, 0),
        tag("p", said),
        tag("p", explained),
    ]


def _stein(stein: Mapping[str, Json]) -> list[Html]:
    rates = [name for name in stein["least_queries"][0] if name != "kl"]
    rows = [[_number(row["kl"]), *(str(row[rate]) for rate in rates)] for row in stein["least_queries"]]
    below = stein["indistinguishable_on_forget_below_kl"]
    limits = ", ".join(f"{_number(below[rate])} (error {rate.removeprefix('at_')})" for rate in rates)
    said = (
        "Queries needed at least to tell the unlearned model from a retrained one that is so far away, for an attacker who "
        f"draws records at random and sees {stein['seen_by_attacker']}; one who picks them may need fewer. As many draws as "
        f"the {stein['n_forget']} forgotten records are too few for that below a KL of {limits}."
    )
    return [tag("p", said), _table(["KL", *(f"error {rate.removeprefix('at_')}" for rate in rates)], rows)]


def _history(history: Sequence[Mapping[str, Json]]) -> list[Html]:
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
    return [_table(["no.", "time", "outcome", "new", "in all", "proxy", "certificate"], rows)]


def _classes(classes: Sequence[Mapping[str, Json]]) -> Html:
    rows = [
        [c["name"], str(c["n_train"]), str(c["n_forget"]), _percent(c["share_before"]), _percent(c["share_after"])]
        for c in classes
    ]
    return _table(["class", "records", "forgotten", "share before", "after"], rows)


def _identity(certificate: Mapping[str, Json]) -> list[Html]:
    content, signature = certificate["certificate"], certificate["signature"]
    made = content["made"]
    signed = signature and tag("code", f"{signature['algorithm']} by {signature['public_key']}")
    pairs = {
        **{f"{file['role']}: {file['path']}": tag("code", file["sha256"]) for file in content["files"]},
        "base model, content": tag("code", content["model"]["base_sha256"]),
        "data, content": tag("code", content["data"]["sha256"]),
        "digest": tag("code", certificate["digest"]["value"]),
        "signature": signed or "none",
        "seed": made["seed"],
        "software": ", ".join(
            f"{name} {version}" for name, version in {"Python": made["python"], **made["software"]}.items()
        ),
    }
    said = "This page is a view. What counts is certificate.json; check it with: unlearn verify certificate.json"
    return [_pairs(pairs, "long"), tag("p", said)]


def _pairs(values: Mapping[str, Json], style: str | None = None) -> Html:
    shown = (tag("dt", name) + tag("dd", _text(value)) for name, value in values.items() if value is not None)
    return tag("dl", joined(map(Html, shown)), class_=style)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> Html:
    def row(element: str, cells: Sequence[str], style: str | None = None) -> Html:
        shown = (tag(element, cell, class_="number" if i else None) for i, cell in enumerate(cells))
        return tag("tr", *shown, class_=style)

    body = (row("td", cells, "chosen" if i == chosen else None) for i, cells in enumerate(rows))
    return tag("div", tag("table", joined([row("th", head), *body])), class_="scroll")


def _curve(points: Sequence[Sequence[float | None]], eta_max: float | None) -> Iterable[Html]:
    """h(eta) as a drawing: below zero the shift pays by the proxies' own account, and eta_max is where that ends."""
    known = [(eta, h) for eta, h in points if eta is not None and h is not None]
    if len(known) < 2:
        return
    width, height, left, top = 330.0, 150.0, 72.0, 10.0
    right, bottom, end = left + width, top + height, known[-1][0]
    low, high = min(0.0, *(h for _, h in known)), max(0.0, *(h for _, h in known))

    def across(eta: float) -> str:
        return f"{left + width * eta / end:.1f}"

    def down(h: float) -> str:
        return f"{top + height * (high - h) / ((high - low) or 1.0):.1f}"

    def line(x1: object, y1: object, x2: object, y2: object, **look: str) -> Html:
        return tag("line", x1=f"{x1}", y1=f"{y1}", x2=f"{x2}", y2=f"{y2}", **look)

    def text(x: float, y: float, said: str, anchor: str | None = None) -> Html:
        return tag("text", said, x=f"{x}", y=f"{y}", text_anchor=anchor)

    said = "by the proxies' own account the shift pays where it is at most 0"
    title = f"h over eta in nats: {said}; eta_max is {_number(eta_max)}"
    path = " ".join(f"{across(eta)},{down(h)}" for eta, h in known)
    marks = [
        line(left, down(0), right, down(0), stroke="currentColor", stroke_opacity="0.4"),
        tag("polyline", points=path, fill="none", stroke="var(--accent)", stroke_width="2"),
        text(left - 6, top + 4, _number(high), "end"),
        text(left - 6, bottom, _number(low), "end"),
        text(left, bottom + 18, "0"),
        text(right, bottom + 18, f"eta {end:g}", "end"),
    ]
    if eta_max:
        x = across(eta_max)
        marks.append(line(x, top, x, bottom, stroke="var(--accent)", stroke_dasharray="4 3"))
    size = f"0 0 {right + 10:.0f} {bottom + 26:.0f}"
    yield tag("svg", tag("title", title), *marks, viewBox=size, role="img", aria_label=title)


def _numbers(values: Mapping[str, Json], *names: str) -> list[str]:
    return [_number(values[name]) for name in names]


def _number(value: float | int | None) -> str:
    if value is None:
        return "infinite or undefined"
    if value == UNBOUNDED:
        return "no number"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _text(value: Json) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
