"""The words of the field: private terms of version 1 are gone from the pages.

Keys of records, names of files and values of on-disk settings keep their names: they are in code spans and code blocks,
which are not searched.
"""

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "results/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

REPLACED = {
    r"sees? (all|the noise|everything)": "white-box adaptive attack; EOT-PGD",
    r"(three|other|another|one|each) ways?\b|ways? to certify": "procedure, estimator, direction",
    r"draws? (a|an|each) |noise draws?|draws of (the )?noise": "noise samples per",
    r"\bprices?\b|\bpriced\b": "penalty, dual variable gamma",
    r"\bclimb(s|ed|ing)?\b|moved inputs?|\bmoved\b": "perturbed, adversarial example",
    r"\blent\b|\blender\b|\blends?\b|stand-ins?\b|\bbeside\b": "evaluation copy; surrogate data set; baselines",
    r"\bjudg(e|es|ed|ing)\b(?! by proof)|\bscored\b": "predictor: base or smoothed",
    r"\blots?\b|\bsurvey|\bevidence\b": "sample block; sampling plan; vote counts",
    r"\btells?\b|\btold\b": "progress callback",
    r"\bworkshop|\bwitness": "experiment store; weights fingerprint",
    r"\brivals?\b": "runner-up class; baseline",
    r"\breadings?\b": "metric; protocol variant",
    r"left standing|standing\b|\bstands? (in|beside|below)|\bbroken\b(?! link)": "robust, not robust at this radius",
    r"looks? at its neighbours|\bneighbours?\b": "batch-dependent; batch independence",
    r"beyond doubt|undecided": "significant at 1e-6; not significant at 5%",
    r"\bdither": "randomized rounding",
    r"copies agree|copies that agree": "consistency regularization",
    r"solver that converges": "damped inner solver",
    r"network to try": "pretrained model",
    r"\bprinted\b": "reported in the paper",
    r"textbook": "reference implementation",
    r"\bledger\b|main row\b": "compute cost; main experiment",
    r"\bkinks?\b": "non-smooth activation",
    r"\bhouse\b|\brooms?\b": "package, subpackage",
    r"\bproviso|\bsettled\b|charged alpha": "scope of validity; resolved; alpha after the sampler's correction",
    r"\battained\b|\bconventions?\b": "primal lower bound; clean and noisy budget",
    r"upper limit": "upper bound",
    r"where (none|nothing|it) is (given|told)": "default: ...",
    r"[Nn]ames the noise": "random seed",
    r"\bl(ie|ies|ay) (in|beside|above|below|between)\b": "is in",
    r"\bas (it is|they are|it was|they were)\b": "unchanged",
    r"\b(a line|a row|a record|a vote|a gradient) (a|an) \w+": "one per",
    r"\d (s|ms|images|samples|epochs) an? (image|epoch|second|point|radius|gradient)\b": "per",
}


PLAIN = "|".join(
    [
        *("room in the batch", "there is room", "the other way round", "reading pairs", "moved to", "draw a share"),
        *("results are printed", "what is printed", "too few votes to tell", "as (it|they) (is|are|was|were)"),
        *("evidence", "broken"),
    ]
)
"""Phrases of the source in which a word has its plain meaning, and keys of records."""
TREES = ("src/rhobust", "reproduction", "benchmarks")


def prose(page):
    """A page without code, comments and addresses of links."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^- \[\d+\] another attack is stronger: .*$", "", text, flags=re.MULTILINE)  # as records have it
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`|<!--.*?-->|\]\([^)]*\)|\$\$.*?\$\$|\$[^$\n]*\$", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_uses_the_words_of_the_field(page):
    text = prose(page)
    found = [
        f"{text[max(match.start() - 30, 0) : match.end() + 20]!r}: say {instead}"
        for term, instead in REPLACED.items()
        for match in re.finditer(term, text)
    ]
    assert found == []


@pytest.mark.parametrize("tree", TREES)
def test_comments_and_texts_of_the_source_use_the_words_of_the_field(tree):
    found = []
    for path in sorted((ROOT / tree).rglob("*.py")):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type != tokenize.COMMENT and (token.type != tokenize.STRING or " " not in token.string):
                    continue
                text = re.sub(PLAIN, "", re.sub(r"`[^`\n]*`", "", token.string))
                found += [
                    f"{path.relative_to(ROOT)}:{token.start[0]}: {match[0]!r}: say {instead}"
                    for term, instead in REPLACED.items()
                    for match in re.finditer(term, text)
                ]
    assert found == []
