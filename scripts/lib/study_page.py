"""What scripts/kv-figures and its neighbours share: a run of `millrace bench STUDY`, and a page
of docs/ whose tables and plots between marks are of one run.

What stands between "<!-- bench STUDY: NAME -->" and "<!-- end -->" is rewritten; what a run has no
figures for stays as it is.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
DOCS = os.path.join(SCRIPTS, "../docs")
FAST = "fast"


class Run:
    """What `millrace bench STUDY --json FILE` wrote."""

    def __init__(self, path):
        with open(path) as file:
            self.document = json.load(file)
        self.values = {}
        for figure in self.document["figures"]:
            for series in figure["series"]:
                for point in series["points"]:
                    x = point["x"] if "x" in point else point["item_bytes"]
                    key = (figure["id"], figure["mode"], series["label"], x)
                    self.values[key] = point["median"]

    def modes(self):
        return sorted({mode for _, mode, _, _ in self.values})

    def labels(self, figure, mode=FAST):
        found = [one for one in self.document["figures"] if (one["id"], one["mode"]) == (figure, mode)]
        return [series["label"] for series in found[0]["series"]] if found else []

    def at(self, figure, label, x, mode=FAST):
        return self.values.get((figure, mode, label, x))

    def curve(self, figure, label, mode=FAST):
        return {x: value for (one, its, name, x), value in self.values.items()
                if (one, its, name) == (figure, mode, label)}


def disagreements_first(findings):
    """Of a run's document; within a verdict in their order."""
    return sorted(findings, key=lambda one: ("differs", "stronger", "agrees").index(one["verdict"]))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


class Page:
    """`tables`: by the name of its mark, what makes it of a run (None: not of this one).
    `plots`: figures that the mark "plots" has: of mode fast, or with their mode."""

    def __init__(self, study, document, tables, plots, tell=lambda run: None, words=None):
        self.study = study
        self.words = words or [study]  # of `millrace bench`
        self.document = os.path.join(DOCS, document)
        self.tables = {**tables, "plots": self.plot_lines}
        self.plots = [(one, FAST) if isinstance(one, str) else one for one in plots]
        self.tell = tell

    def file_name(self, figure, mode):
        return re.sub(r"[^a-z0-9.]+", "-", f"{self.study}-{figure}-{mode}".lower()) + ".svg"

    def plot_lines(self, run):
        if not self.plots or any(not run.labels(*one) for one in self.plots):
            return None
        titles = {one["id"]: one["title"] for one in run.document["figures"]}
        figures = os.path.relpath(os.path.join(DOCS, "figures"), os.path.dirname(self.document))
        return "\n".join(f"![{titles[figure]}]({figures}/{self.file_name(figure, mode)})"
                         for figure, mode in self.plots)

    def draw(self, path):
        """False: they cannot be drawn here."""
        with tempfile.TemporaryDirectory() as folder:
            # The first of the path, or the system's, as `millrace bench` has it.
            for interpreter in (sys.executable, "/usr/bin/python3"):
                made = subprocess.run(
                    [interpreter, os.path.join(SCRIPTS, "plot-figures"), path, folder],
                    check=False, capture_output=True, text=True)
                if made.returncode == 0:
                    break
            else:
                print(f"{self.study}-figures: the plots stay as they are: Python with matplotlib is "
                      f"needed (Debian: python3-matplotlib)\n{made.stderr}", file=sys.stderr)
                return False
            for one in self.plots:
                shutil.copy(f"{folder}/{self.file_name(*one)}", os.path.join(DOCS, "figures"))
        return True

    def renew(self, path, check):
        run = Run(path)
        with open(self.document) as file:
            before = file.read()
        has_plots = self.plot_lines(run) is not None and (check or self.draw(path))

        def renewed(match):
            if match.group(2) == "plots" and not has_plots:
                return match.group(0)
            made = self.tables[match.group(2)](run)
            return match.group(0) if made is None else f"{match.group(1)}\n{made}\n{match.group(4)}"

        mark = rf"(<!-- bench {self.study}: (\w+) -->)\n(|.*?\n)(<!-- end -->)"
        after = re.sub(mark, renewed, before, flags=re.S)
        print(f"load {run.document['load']}; {run.document['repeats']} runs; "
              f"{run.document['seconds'] / 60:.1f} min; {len(run.values):,} points; "
              f"{len(run.document['failures'])} failed")
        self.tell(run)
        if check:
            sys.exit(after != before)
        with open(self.document, "w") as file:
            file.write(after)

    def main(self, arguments, usage):
        main([self], arguments, usage)

    def measure(self, build):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/{self.study}.json"
            subprocess.run([f"{build}/bin/millrace", "bench", *self.words, "--json", path],
                           check=True)
            self.renew(path, False)


def main(pages, arguments, usage):
    """`pages`: of one script; a file's study says whose it is."""
    if arguments and arguments[0] == "--run" and len(arguments) <= 2:
        build = arguments[1] if len(arguments) == 2 else os.path.join(SCRIPTS, "../build/release")
        for page in pages:
            page.measure(build)
        return
    files = [one for one in arguments if one != "--check"]
    if len(files) != 1 or files[0].startswith("-"):
        sys.exit(usage)
    study = Run(files[0]).document["study"]
    page = next((one for one in pages if one.study == study), None)
    if page is None:
        sys.exit(f"{files[0]} is of millrace bench {study}; here belong "
                 f"{', '.join(one.study for one in pages)}")
    page.renew(files[0], "--check" in arguments)
