"""Findings about a log before its fit, and the log after the option that a finding advises."""

import argparse
import re
import shlex
from dataclasses import fields

import torch

from torchsko.cli.log_options import CORRECTIONS, add_log_options, calibrations_of, parse_units
from torchsko.identification.diagnostics.check_lists import CHECKS_BEFORE_FIT
from torchsko.identification.diagnostics.findings import CODES, collect
from torchsko.identification.joint_terms import JointTerms
from torchsko.identification.options import FitOptions
from torchsko.identification.preparation import prepare

OPTION = re.compile(r"--(?:unit|order|couple|even-times|" + "|".join(CORRECTIONS) + r")\b")


def options(*, joint_terms: JointTerms = None, cutoff=None):
    """Options of least squares."""
    chosen = {
        "joint_terms": joint_terms, "candidate_terms": (), "method": "ols", "cutoff": cutoff,
        "folds": 5, "on_findings": dict.fromkeys(CODES, "warn"),
    }  # fmt: skip
    return FitOptions(**dict.fromkeys(x.name for x in fields(FitOptions)) | chosen)


def findings_of(mech, log, **given):
    """All findings before the fit; none raises."""
    chosen = options(**given)
    context, found = prepare(mech, log, chosen, lambda text, share: None)
    return found + collect(CHECKS_BEFORE_FIT, context, chosen.on_findings, log.name)


def advised_words(text):
    """The words of the first run of options in an advice, without the punctuation after them."""
    start = OPTION.search(text)
    words = []
    for word in shlex.split(re.split(r", or |, and |; |\.(?: |$)|\)", text[start.start() :])[0]):
        words.append(word.rstrip(",;"))
    return words


def corrected(mech, log, advice):
    """The log after the options in an advice, as the command line parses them."""
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    given = parser.parse_args(advised_words(advice))
    log = log.with_even_times() if given.even_times else log
    log = log.calibrate(mech, units=parse_units(given.unit))
    for calibration in calibrations_of(mech, given):
        log = log.calibrated(mech, calibration)
    return log


def as_log(log):
    """Tensors of a log."""
    return [torch.as_tensor(x) for x in (log.t, log.q, log.qd, log.tau)]
