"""What `tune.run(resume=...)` means: Ray's strings as rules for the trials of an earlier run."""

from __future__ import annotations

from muster.tune.config import ResumeConfig

_KIND = ResumeConfig.ResumeType
_RULES = {
    "ERRORED": ResumeConfig(errored=_KIND.RESUME),
    "RESTART_ERRORED": ResumeConfig(errored=_KIND.RESTART),
    "ERRORED_ONLY": ResumeConfig(unfinished=_KIND.SKIP, errored=_KIND.RESUME),
    "RESTART_ERRORED_ONLY": ResumeConfig(unfinished=_KIND.SKIP, errored=_KIND.RESTART),
}
_GONE = ("LOCAL", "REMOTE", "PROMPT", "ERRORED_ONLY")


def resume_rules(resume: bool | str | None, explicit: ResumeConfig | None = None) -> ResumeConfig | None:
    """What to do with the trials of an earlier run of this name, if there is one; None: begin anew.

    Example:
        >>> resume_rules("AUTO+ERRORED").errored.value, resume_rules(False)
        ('resume', None)
    """
    if not resume:
        return explicit
    base, *suffixes = ["AUTO"] if resume is True else str(resume).upper().split("+")
    if base in _GONE:
        raise DeprecationWarning(f"resume={resume!r} does not exist any more: use 'AUTO', or 'AUTO+ERRORED'")
    unknown = [each for each in suffixes if each not in _RULES]
    if base != "AUTO" or unknown:
        known = ", ".join(f"'AUTO+{each}'" for each in _RULES)
        raise ValueError(f"resume={resume!r}: must be True, False, 'AUTO' or one of {known}")
    if explicit is not None:
        return explicit
    return _RULES[suffixes[-1]] if suffixes else ResumeConfig()
