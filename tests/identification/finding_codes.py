"""Findings of a fit by code, and checks of a raw log, for tests."""

import torchsko as ts
from torchsko.identification.diagnostics.check_lists import RAW_LOG_CHECKS
from torchsko.identification.diagnostics.context import RawLog
from torchsko.identification.diagnostics.findings import collect


def texts(fit, code):
    """Texts of the findings with a code."""
    return [str(x) for x in fit.findings if x.code == code]


def codes(fit):
    """All codes of a fit."""
    return {x.code for x in fit.findings}


def check_raw(mech, log, rate):
    """Run the checks of a raw log; errors raise."""
    return collect(RAW_LOG_CHECKS, RawLog.of(mech, log, rate), {}, log.name)


def code_of(call):
    """The code of the finding that stops a call; None if nothing does."""
    try:
        call()
    except ts.FitError as error:
        return getattr(error, "code", None)
    return None
