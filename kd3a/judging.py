"""Claims held against records: leads seed by seed, their intervals, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from scipy.special import ndtri, stdtrit

#: As a claim's target: each of them by itself.
EVERY = "every"
#: As a claim's value: powers of ten, whose leads are factors and not points.
SAVING = "saving"
NAN = float("nan")


@dataclass(frozen=True)
class Claim:
    """Row ``above`` beats every row of ``below`` by at least ``margin``, in the mean of ``value`` over all targets.

    A negative margin allows for a loss. With ``printed``, the row is held against that number instead. ``value`` is a
    column of :func:`kd3a.report.outcomes`. With ``target`` that target alone counts, with :data:`EVERY` each of them by
    itself. Where rows are ``alike``, they must lie within the margin of each other. With ``halfway`` the mean of the
    rows below is what it must beat: the first has then more than half of the way from one of them to the other.
    """

    text: str
    above: str
    below: tuple[str, ...] = ()
    margin: float = 0.0
    value: str = "accuracy"
    printed: float | None = None
    target: str = ""
    alike: bool = False
    halfway: bool = False

    @property
    def needed(self) -> str:
        """The smallest lead that counts, in points or as a factor."""
        if self.value == SAVING:
            return f"≥ {self.told(self.margin)}"
        if self.alike:
            return f"within ± {100 * self.margin:.1f}"
        return f"≥ {100 * self.margin:.1f}".replace("-", "−") if self.margin or self.printed else "> 0"

    def told(self, lead: float) -> str:
        """A lead as a page writes it: in points, or as a factor; with a second decimal where one would hide its side.

        >>> Claim("", "a").told(-0.012), Claim("", "a").told(-0.0003), Claim("", "a", value=SAVING).told(2)
        ('−1.2', '−0.03', '100 times')
        """
        if self.value == SAVING:
            return f"{10**lead:,.0f} times"
        close = any(1e-6 < abs(100 * (lead - limit)) < 0.05 for limit in (0, self.margin))
        return f"{round(100 * lead, 1 + close) + 0.0:+.{1 + close}f}".replace("-", "−")

    def within(self, lead: float, low: float, high: float) -> str:
        """A lead and, in brackets, its interval, if it has one.

        >>> Claim("", "a").within(0.012, -0.004, 0.028), Claim("", "a").within(0.012, NAN, NAN)
        ('+1.2 (−0.4 to +2.8)', '+1.2')
        """
        return self.told(lead) + (f" ({self.told(low)} to {self.told(high)})" if pd.notna(low) else "")

    def holds(self, lead: float) -> bool:
        if self.alike:
            return bool(abs(lead) <= self.margin)
        return bool(lead >= self.margin if self.margin or self.printed else lead > 0)


@dataclass(frozen=True)
class Finding:
    """What the records say of a claim: the smallest of its leads, and a 95 % interval; without seeds it is open."""

    claim: Claim
    lead: float = NAN
    std: float = NAN
    seeds: int = 0
    interval: tuple[float, float] = (NAN, NAN)

    @property
    def holds(self) -> bool | None:
        return self.claim.holds(self.lead) if self.seeds else None

    @property
    def clear(self) -> bool:
        """Whether all of the interval is on the same side of what is needed; never with one seed."""
        (low, high), margin = self.interval, self.claim.margin
        if self.claim.alike:
            return bool((-margin < low and high < margin) or high < -margin or low > margin)
        return bool(low > margin or high < margin)

    @property
    def outcome(self) -> str:
        """``holds`` or ``fails``, ``open`` without records; *not clear* where more seeds could turn it."""
        word = {True: "holds", False: "fails", None: "open"}[self.holds]
        return word if self.clear or self.holds is None else f"{word}, not clear"


def judge(frame: pd.DataFrame, claims: Sequence[Claim], targets: Sequence[str]) -> list[Finding]:
    """Hold every claim against the records; only seeds that have all targets of all its rows count.

    Of several leads, over several rivals or on every target, the smallest is told. Its interval is one for the smallest
    of the true ones: it begins where the lowest of theirs begins, and ends where the first of theirs ends when the
    error is shared out (Bonferroni), because the one that looks smallest may do so by chance.
    """
    findings = []
    for claim in claims:
        leads = _leads(frame, claim, targets)
        if not leads or leads[0].empty:
            findings.append(Finding(claim))
            continue
        least = min(leads, key=pd.Series.mean)
        low = min(interval(each, claim.value)[0] for each in leads)
        high = min(interval(each, claim.value, 0.05 / len(leads))[1] for each in leads)
        findings.append(Finding(claim, least.mean(), least.std(ddof=1), len(least), (low, high)))
    return findings


def _leads(frame: pd.DataFrame, claim: Claim, targets: Sequence[str]) -> list[pd.Series]:
    """The leads of a claim by seed, for each rival and, if every one counts, each target; none if a row is missing."""
    rows = [claim.above, *claim.below]
    if not (claim.below or claim.printed) or not len(frame) or set(rows) - set(frame["row"]):
        return []
    groups = [[t] for t in targets] if claim.target == EVERY else [[claim.target] if claim.target else list(targets)]
    wide = frame[frame["row"].isin(rows)].pivot_table(index="seed", columns=["row", "target"], values=claim.value)
    cells = pd.MultiIndex.from_product([rows, dict.fromkeys(t for group in groups for t in group)])
    wide = wide.reindex(columns=cells).dropna()
    means = [{row: wide[[(row, t) for t in group]].mean(axis=1) for row in rows} for group in groups]
    if claim.halfway:
        return [of[claim.above] - sum(of[rival] for rival in claim.below) / len(claim.below) for of in means]
    if claim.below:
        return [of[claim.above] - of[rival] for of in means for rival in claim.below]
    return [of[claim.above] - claim.printed for of in means]


def interval(leads: pd.Series, value: str = "accuracy", error: float = 0.05) -> tuple[float, float]:
    """Confidence interval of the mean of leads, by Student's t.

    Of images that are ``recovered`` or not, whose leads are −1, 0 or 1 and may all be the same, the interval of Agresti
    and Min for the difference of paired proportions: half an image is added to each of the four cells. Images of one
    update, whose seeds agree before the dot, are searched for together: they count as one.
    """
    if value == "recovered":
        n = leads.index.astype(str).str.partition(".").get_level_values(0).nunique()
        more, less = (n * (leads > 0).mean() + 0.5, n * (leads < 0).mean() + 0.5)
        mean = (more - less) / (n + 2)
        half = float(ndtri(1 - error / 2)) * ((more + less) / (n + 2) - mean**2) ** 0.5 / (n + 2) ** 0.5
        return max(-1.0, mean - half), min(1.0, mean + half)  # shares differ by no more
    n, mean = len(leads), leads.mean()
    half = float(stdtrit(n - 1, 1 - error / 2)) * leads.std(ddof=1) / n**0.5 if n > 1 else NAN
    return mean - half, mean + half


def verdict(findings: Sequence[Finding], word: str = "reproduced") -> str:
    """``reproduced`` when every claim holds, ``not reproduced`` when none does, ``partly reproduced`` between; *not
    clear* where more seeds could turn one of them, ``open`` while one cannot be judged."""
    held = [finding.holds for finding in findings]
    if None in held or not held:
        return "open"
    answer = word if all(held) else f"partly {word}" if any(held) else f"not {word}"
    return answer if all(finding.clear for finding in findings) else f"{answer}, not clear"


def findings_table(findings: Sequence[Finding]) -> pd.DataFrame:
    """The claims, whether they hold, and the leads in points of accuracy."""
    lines = []
    for f in findings:
        spread = f" ± {100 * f.std:.1f}" if f.seeds > 1 and f.claim.value != SAVING else ""
        lead = f"{f.claim.told(f.lead)}{spread} ({f.seeds})" if f.seeds else "–"
        low, high = map(f.claim.told, f.interval)
        lines.append(
            {
                "claim": f.claim.text,
                "outcome": f.outcome,
                "needed": f.claim.needed,
                "measured": lead,
                "95 % interval": f"{low} to {high}" if f.seeds > 1 else "–",
            }
        )
    return pd.DataFrame(lines).set_index("claim")
