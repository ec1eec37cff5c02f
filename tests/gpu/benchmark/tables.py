# SPDX-License-Identifier: Apache-2.0
"""Makes tables and plots of the raw files. Nothing is measured here."""

import json
import statistics

from workloads import LANGUAGE_MODELS

GIB = 1 << 30
WARM_UP = 2  # as in measures.py: turns that are left out of all figures of time


def percent(share):
    return f"{100 * share:.1f} %"


def one_line(reason):
    """The end of the reason why something failed, as it can stand in a table."""
    return " ".join(str(reason)[-200:].split()).replace("|", "/")


def read(folder):
    """All measurements of a kind, a dictionary for each raw file, in the order of the files' names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.json"))]


# --- cost ---

def live(turns, allocator=""):
    """The most that the program had allocated: as PyTorch says, or for other frameworks as stalloc says where it serves. A
    plan's memory holds what libraries ask of cudaMalloc too, of which PyTorch knows nothing, so there stalloc is asked."""
    return max((allocator != "planned" and turn.get("live") or turn["stalloc"].get("live_peak", 0) for turn in turns), default=0)


def held(turns):
    """The most that the allocator had taken from the device, from the same sources."""
    return max((turn.get("held") or turn["stalloc"].get("physical_peak", 0) for turn in turns), default=0)


def by_driver(result, allocator):
    """By how much the memory in use grew as the driver counts it, without the context and the libraries' own; None: not
    known."""
    ready, turns = result["ready"].get(allocator, {}), result["rounds"][allocator]
    if "idle_before" not in ready:
        return None
    before = ready.get("used_before", {})
    which = "process" if "process" in before else None if result["at_once"] else "device"
    used = [turn["used"][which] for turn in turns if which and which in turn["used"]]
    return max(used) - (before[which] - ready["idle_before"]) if used and which in before else None


def ratios(turns, reference):
    """The ratio of the seconds of each round to those of the reference in the same round."""
    pairs = list(zip(turns, reference))[WARM_UP:]
    return [mine["seconds"] / its["seconds"] for mine, its in pairs]


def median_and_spread(values, digits=3):
    if not values:
        return ""
    if len(values) < 3:
        return f"{statistics.median(values):.{digits}f}"
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def removed(turns, allocator, native):
    """The share of native's fragmentation that this allocator avoids; None: not known."""
    lost = held(native) - live(native)
    return 1 - (held(turns) - live(turns, allocator)) / lost if lost > 0 and held(turns) else None


def beside(result, allocator):
    """The turns of native that those of the allocator were made in turns with."""
    return (allocator == "planned" and result.get("native_beside_planned")) or result["rounds"].get("native", [])


def start_of(ready):
    """The seconds that imports, CUDA's start and making the program took."""
    return " + ".join(f"{ready[part]:.1f}" for part in ("import_seconds", "initialize_seconds", "make_seconds"))


def cost_row(result, allocator, title):
    turns, native = result["rounds"][allocator], result["rounds"].get("native", [])
    if not turns:
        return f"| {title} | {one_line(result['failed'].get(allocator, 'not measured'))} |" + " |" * 9
    steady = turns[WARM_UP:] or turns
    driver = by_driver(result, allocator)
    mapping = sum(turn["stalloc"].get("mapping_ns_after_start", 0) for turn in turns[-1:]) / 1e9
    used, avoided = live(turns, allocator), removed(turns, allocator, native)
    return (f"| {title} | {used / GIB:.2f} | {held(turns) / GIB:.2f} | "
            f"{percent(1 - used / held(turns)) if held(turns) else ''} | {'' if avoided is None else percent(avoided)} | "
            f"{'' if driver is None else f'{driver / GIB:.2f}'} | {median_and_spread(ratios(turns, beside(result, allocator)))} | "
            f"{statistics.median(turn['seconds'] for turn in steady):.3f} | "
            f"{statistics.median(turn['host_seconds'] for turn in steady):.3f} | "
            f"{start_of(result['ready'][allocator])} + {turns[0]['seconds']:.1f} | "
            f"{mapping:.2f} |")


def micro_batch(options, size):
    """A size, as sequences by tokens."""
    if options.get("grows") == "seq":  # as older raw files have it
        return f"1×{256 * size}"
    sequences = options.get("sequences", 0)
    return f"{sequences}×{options['unit'] * size}" if sequences else f"{size}×{options['seq']}"


def settings_of(program, options):
    """The settings in words."""
    if program not in LANGUAGE_MODELS:
        return f"size {options['size']}"
    words = [f"{options['shape']}, {options['layers']} layers"]
    words += [f"recompute {options['recompute']}"] if options["recompute"] != "none" else []
    words += [name.replace("_", " ") for name in ("lora", "varlen", "compiled", "float8", "offload") if options[name]]
    words += [options["optimizer"]] if options["optimizer"] != "adamw" else []
    words += [f"{options['in_flight']} in flight"] if options["in_flight"] > 1 else []
    words += [f"experts {options['experts_by']}"] if options["experts_by"] != "eager" else []
    return ", ".join(words) + f"; {micro_batch(options, options['size'])} tokens, accumulation {options['accumulate']}"


def cost_table(result, allocators):
    if "rounds" not in result:
        return f"**{result.get('workload', '?')}**: not measured: {one_line(result.get('failed'))}\n"
    way = "side by side" if result["at_once"] else "one after the other"
    text = [f"**{result['workload']}** ({settings_of(result['program'], result['options'])}; {way})", "",
            "| allocator | live GiB | held GiB | lost | of native's loss removed | driver counts GiB | time to native, by "
            "turns | turn, s | host, s | import + CUDA + model + first turn, s | mapping, s |", "|---" * 11 + "|"]
    text += [cost_row(result, name, allocators[name].title) for name in result["rounds"]]
    if "plan" in result:
        plan = result["plan"]
        text += ["", f"Trace {result['trace_bytes'] / 1e6:.1f} MB, {plan['requests']} requests; planned in "
                     f"{plan['plan_seconds']:.2f} s and checked in {plan['check_seconds']:.2f} s; plan: "
                     f"{plan['physical_bytes'] / GIB:.2f} GiB, "
                     f"{plan['stitched_views']} views, {plan['handles']} handles, {plan['waits']} waits."]
    return "\n".join(text) + "\n"


def summary_table(results, allocators):
    """A line for each allocator over all workloads in which its memory and native's are known."""
    lines = ["| allocator | workloads | lost, mean | lost, most | of native's loss removed, mean | least | time to native, median "
             "| least and most |", "|---" * 8 + "|"]
    for name in allocators:
        measured = [result for result in results if held(result.get("rounds", {}).get(name, []))
                    and held(result["rounds"].get("native", []))]
        if not measured:
            continue
        lost = {result["workload"]: 1 - live(result["rounds"][name], name) / held(result["rounds"][name]) for result in measured}
        avoided = {result["workload"]: removed(result["rounds"][name], name, result["rounds"]["native"]) for result in measured}
        avoided = {workload: share for workload, share in avoided.items() if share is not None}
        times = [statistics.median(of) for of in (ratios(result["rounds"][name], beside(result, name)) for result in measured)
                 if of]
        most, least = max(lost, key=lost.get), min(avoided, key=avoided.get, default=None)
        line = [allocators[name].title, len(measured), percent(statistics.mean(lost.values())), f"{percent(lost[most])} ({most})",
                percent(statistics.mean(avoided.values())) if avoided else "", f"{percent(avoided[least])} ({least})" if least else "",
                f"{statistics.median(times):.3f}" if times else "", f"{min(times):.3f} to {max(times):.3f}" if times else ""]
        lines.append(f"| {' | '.join(map(str, line))} |")
    return "\n".join(lines) + "\n"


# --- fit ---

def speed(result):
    """Tokens a second at the largest size: the median in the process that showed it."""
    shown = [one for one in result.get("shown", []) if one["size"] == result["largest"] and not one.get("exhausted")]
    turns = shown[-1]["turns"][WARM_UP:] if shown else []
    return statistics.median(turn["done"] / turn["seconds"] for turn in turns) if turns else 0.0


def peak(result):
    """The live and the held GiB at the largest size."""
    shown = [one for one in result.get("shown", []) if one["size"] == result["largest"] and not one.get("exhausted")]
    turns = shown[-1]["turns"] if shown else []
    return live(turns) / GIB, held(turns) / GIB


def grouped(results):
    """The results as {(workload, limit): {allocator: result}}."""
    groups = {}
    for result in results:
        if "largest" in result:
            groups.setdefault((result["workload"], result["limit"]), {})[result["allocator"]] = result
    return groups


def size_of(result):
    return micro_batch(result["options"], result["largest"])


def card_of(limit):
    return f"{limit / GIB:g} GiB of it" if limit else "the whole card"


def fit_table(results, allocators):
    lines = ["| workload | card | allocator | largest | to native | tokens/s there | to native | live GiB | held GiB "
             "| attempts |", "|---" * 10 + "|"]
    for (name, limit), found in grouped(results).items():
        native = found.get("native")
        for allocator in allocators:
            if allocator not in found:
                continue
            result = found[allocator]
            larger = f"{result['largest'] / native['largest']:.3f}" if native and native["largest"] else ""
            faster = f"{speed(result) / speed(native):.3f}" if native and speed(native) else ""
            held_at, live_at = peak(result)[::-1]
            lines.append(f"| {name}, {result['options']['layers']} layers | {card_of(limit)} | {allocators[allocator].title} | "
                         f"{size_of(result)} | {larger} | {speed(result):.0f} | {faster} | {live_at:.2f} | {held_at:.2f} | "
                         f"{len(result['attempts'])} |")
    lines += [f"| {result.get('workload')} | | {result.get('allocator')} | failed: {one_line(result['failed'])} |" + " |" * 6
              for result in results if "failed" in result]
    return "\n".join(lines) + "\n"


def ladder_table(results, allocators, ladders):
    """For trainings that differ only in what they recompute, the fastest that fits."""
    groups = grouped(results)
    lines = ["| training | card | allocator | fastest that fits | tokens/s | to native |", "|---|---|---|---|---|---|"]
    for ladder, names in ladders.items():
        for limit in sorted({limit for name, limit in groups if name in names}):
            best = {}
            for allocator in allocators:
                fitting = [groups[name, limit][allocator] for name in names if allocator in groups.get((name, limit), {})]
                fitting = [result for result in fitting if result["largest"]]
                if len(fitting) > 1:
                    best[allocator] = max(fitting, key=speed)
            for allocator, result in best.items():
                ratio = f"{speed(result) / speed(best['native']):.3f}" if "native" in best else ""
                lines.append(f"| {ladder} | {card_of(limit)} | {allocators[allocator].title} | "
                             f"recompute {result['options']['recompute']}, {size_of(result)} | {speed(result):.0f} | {ratio} |")
    return "\n".join(lines) + "\n"


def stallocs(allocators):
    return {name for name, allocator in allocators.items() if allocator.variant in ("dynamic", "record", "serve")}


def only_stalloc(found, allocators):
    """Of what one workload's searches found under each allocator: those of stalloc whose largest size is larger than that
    of every other allocator that was tried. Empty unless native and expandable segments were."""
    ours = stallocs(allocators)
    others = [result["largest"] for allocator, result in found.items() if allocator not in ours]
    if not {"native", "expandable"} <= set(found):
        return {}
    return {allocator: found[allocator] for allocator in allocators
            if allocator in ours and allocator in found and found[allocator]["largest"] > max(others)}


def rungs_above(name, ladders):
    """The same training with more recomputed."""
    return next((names[names.index(name) + 1:] for names in ladders.values() if name in names), ())


def to_recompute(raw, allocators, ladders, limit):
    """What `recompute` measures, as (workload, allocator, size): each size that only stalloc trains, under the other
    allocators that a search was made with, in the same training with more recomputed."""
    wanted = []
    for (name, of), found in grouped(read(raw / "fit")).items():
        sizes = {result["largest"] for result in only_stalloc(found, allocators).values()} if of == limit else ()
        wanted += [(rung, allocator, size) for size in sorted(sizes) for rung in rungs_above(name, ladders)
                   for allocator in found if allocator not in stallocs(allocators)]
    return wanted


def fastest(results, allocators):
    """The fastest of some results, in words, and its tokens a second; empty words where nothing fits."""
    best = max((result for result in results if result["largest"]), key=speed, default=None)
    if best is None:
        return "", 0.0
    title = allocators[best["allocator"]].title
    return f"{title}, recompute {best['options']['recompute']}, {size_of(best)}: {speed(best):.0f}", speed(best)


def only_table(results, recomputed, allocators, ladders):
    """Sizes at which every other allocator that was tried, native and expandable segments among them, ran out of memory
    and stalloc trained. Beside its tokens a second there: the most that another had in any training of the same ladder, at
    this size with more recomputed, and at its own largest size. Empty when there is none."""
    groups, ours = grouped(results), stallocs(allocators)
    lines = []
    for (name, limit), found in groups.items():
        alike = next((names for names in ladders.values() if name in names), (name,))
        anywhere = fastest([result for each in alike for allocator, result in groups.get((each, limit), {}).items()
                            if allocator not in ours], allocators)
        for allocator, result in only_stalloc(found, allocators).items():
            here = fastest([other for other in recomputed if other.get("size") == result["largest"] and "largest" in other
                            and other["limit"] == limit and other["workload"] in rungs_above(name, ladders)], allocators)
            cells = [cell for words, most in (here, anywhere)
                     for cell in (words, f"{speed(result) / most:.3f}" if most else "")]
            lines.append(f"| {name} | {card_of(limit)} | {allocators[allocator].title} | {size_of(result)} | {speed(result):.0f} | "
                         f"{' | '.join(cells)} |")
    head = ("| workload | card | allocator | trains | tokens/s | the fastest of others at this size | ratio "
            "| at any size | ratio |\n" + "|---" * 9 + "|\n")
    return head + "\n".join(lines) + "\n" if lines else ""


# --- everything ---

def in_a_line(result):
    """The line that is printed when a measurement is done."""
    if "rounds" not in result and "largest" not in result:
        return f"failed: {str(result['failed'])[-300:]}"
    if "largest" in result:
        return f"largest {result['largest']}, {speed(result):.0f} tokens/s, {len(result['attempts'])} attempts"
    said = ", ".join(f"{name} {held(turns) / max(live(turns, name), 1):.3f}" for name, turns in result["rounds"].items() if turns)
    return f"held / live: {said}" + (f"; failed: {', '.join(result['failed'])}" if result["failed"] else "")


def plot(costs, fits, allocators, out):
    """Draws up to three plots, as far as there are figures for them. Returns a line that names the files."""
    try:
        import matplotlib
    except ImportError:
        return "no matplotlib: no plots"
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "stalloc"  # so that the same figures give the same file
    from matplotlib import pyplot

    def dots(values, title, axis, file, line=None):
        """Draws one plot of `values`, which are {workload: {allocator: number}}: a row for each workload."""
        values = {name: row for name, row in values.items() if row}
        if not values:
            return []
        shown = [name for name in allocators if any(name in row for row in values.values())]
        figure, axes = pyplot.subplots(figsize=(9, 0.24 * len(values) + 1.6))
        for name, marker in zip(shown, "osD^vX*"):
            places = [place for place, row in enumerate(values.values()) if name in row]
            axes.plot([row[name] for row in values.values() if name in row], places, marker, markersize=5, alpha=0.8,
                      label=allocators[name].title)
        axes.set_yticks(range(len(values)), values)
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.grid(axis="y", linewidth=0.3)
        if line is not None:
            axes.axvline(line, color="black", linewidth=0.6)
        axes.set_xlabel(axis)
        axes.set_title(title)
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        figure.tight_layout()
        figure.savefig(out / file, metadata={"Date": None})
        pyplot.close(figure)
        return [file]

    lost = {result["workload"]: {name: 100 * (1 - live(turns, name) / held(turns)) for name, turns in result["rounds"].items()
                                 if turns and held(turns) and name != "record"} for result in costs if "rounds" in result}
    groups = {f"{name}{f', {limit / GIB:g} GiB' if limit else ''}": found for (name, limit), found in grouped(fits).items()
              if found.get("native", {}).get("largest")}
    larger = {name: {allocator: result["largest"] / found["native"]["largest"] for allocator, result in found.items()}
              for name, found in groups.items()}
    faster = {name: {allocator: speed(result) / speed(found["native"]) for allocator, result in found.items() if speed(result)}
              for name, found in groups.items() if speed(found["native"])}
    files = (dots(lost, "Memory lost to fragmentation", "% of what is held", "lost.svg") +
             dots(larger, "Largest micro-batch or sequence that fits", "times native's", "largest.svg", 1) +
             dots(faster, "Tokens a second at the largest that fits", "times native's", "speed.svg", 1))
    return f"plots: {', '.join(files)}" if files else "no plots"


def write(raw, out, order, allocators, ladders):
    """Writes tables.md and the plots into `out`. Returns the text. `order` has the workloads' names in the order of the
    tables."""
    names = list(order)
    costs = sorted(read(raw / "cost"), key=lambda result: names.index(result["workload"]) if "workload" in result else -1)
    fits = sorted(read(raw / "fit"), key=lambda result: names.index(result["workload"]) if "workload" in result else -1)
    environments = {json.dumps({key: value for key, value in one.items() if key not in ("time", "memory")}): one["time"]
                    for one in read(raw / "environment")}
    text = "## Environment\n\n" + "\n".join(f"- {one} (last {when})" for one, when in environments.items()) + "\n"
    if fits:
        text += "\n## What fits\n\n" + fit_table(fits, allocators)
        only = only_table(fits, read(raw / "recompute"), allocators, ladders)
        text += f"\n## What only stalloc trains\n\n{only}" if only else ""
        text += "\n## The fastest that fits\n\n" + ladder_table(fits, allocators, ladders)
    if costs:
        text += "\n## All workloads\n\n" + summary_table(costs, allocators)
        text += "\n## Memory and time\n\n" + "\n".join(cost_table(result, allocators) for result in costs)
    (out / "tables.md").write_text(text, encoding="utf-8")
    return text + "\n" + plot(costs, fits, allocators, out)
