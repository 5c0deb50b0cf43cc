"""From a counterexample to a finding and its replay file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specsim import replay_file
from specsim.contracts.contract import Case, Op, TensorArg
from specsim.contracts.provider import Subject
from specsim.errors import UsageError
from specsim.replay_file import OpReplay
from specsim.tiers.ops.suite import Counterexample
from specsim.tiers.ops.written import written
from specsim.tiers.transfer import broken
from specsim.verdict import Finding, Rule


@dataclass(frozen=True, slots=True)
class Origin:
    """What a finding says of where it comes from. `generator` is "bulk" for a tape of bulk cases."""

    target: str
    seed: int
    device: str
    generator: str = ""


def signature_of(subject: Subject) -> str:
    """One defect is one implementation of one operation: the same on every release that has it."""
    return f"ops:{subject.op}:{subject.name}"


def finding_of(
    op: Op,
    subject: Subject,
    found: Counterexample,
    origin: Origin,
) -> tuple[Finding, OpReplay]:
    """The finding of a counterexample, and what its replay file holds. A guarded or optional caller keeps its severity:
    `reach` says who is hit.
    """
    if found.outcome is None:
        return process_failure(op, subject, found.case, found.rule, found.ended, origin, found.tape)
    violation = found.outcome.of(found.rule)
    assert violation is not None
    finding = broken(
        found.rule,
        title=f"{_what(subject)}: {violation.title}",
        reach=found.reach,
        expected=violation.expected,
        actual=violation.actual,
        count=found.failing,
        details=_details(subject, found),
        fixture=found.known.name if found.known else "",
        **_of_subject(op, subject, found.case, origin),
    )
    return finding, _replay_of(finding, op, subject, found.case, origin, found.tape, found.outcome.digest)


def process_failure(
    op: Op, subject: Subject, case: Case, rule: Rule, text: str, origin: Origin, tape: Sequence[int] = ()
) -> tuple[Finding, OpReplay]:
    """The finding of a call that hung or took its process with it; its case is not shrunk."""
    finding = broken(
        rule,
        title=f"{_what(subject)}: {text}",
        reach=subject.reach(case.sizes),
        expected=rule.sentence,
        actual=text,
        count=1,
        details=(_sizes_line(case),),
        **_of_subject(op, subject, case, origin),
    )
    return finding, _replay_of(finding, op, subject, case, origin, tape, "")


def _what(subject: Subject) -> str:
    if subject.role == "caller":
        return f"caller {subject.name.removeprefix('caller:')} of {subject.op}"
    return subject.op


def _details(subject: Subject, found: Counterexample) -> tuple[str, ...]:
    lines = [] if subject.far else [_sizes_line(found.case)]
    if found.explanation:
        lines.append(found.explanation)
    if found.missed:
        lines.append(f"not in every run: {found.missed} of {found.missed + 1} runs of this case did not show it")
    if found.known:
        lines.append(f"the case of the known finding {found.known.name}")
    violations = found.outcome.violations if found.outcome else ()
    others = [v for v in violations if v.rule is not found.rule]
    lines += [f"also {v.rule.label}: {v.title}" for v in others]
    return tuple(lines)


def _sizes_line(case: Case) -> str:
    return "smallest case: " + ", ".join(f"{name}={size}" for name, size in case.sizes.items())


def _argument_lines(op: Op, case: Case) -> tuple[str, ...]:
    """Name, type, shape and values of each argument."""
    lines = []
    for arg in op.args:
        if not isinstance(arg, TensorArg):
            lines.append(f"{arg.name} = {case.sizes[arg.name]}")
        elif arg.name in case.tensors:
            tensor = case.tensors[arg.name]
            kind = f"{arg.name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            lines.append(f"{kind} = {written(tensor.shape, tensor.flatten().tolist())}")
    return tuple(lines)


def _of_subject(op: Op, subject: Subject, case: Case, origin: Origin) -> dict[str, Any]:
    """What every finding of an implementation says."""
    return {
        "signature": signature_of(subject),
        "tier": "ops",
        "where": subject.where,
        "op": op.name,
        "provider": origin.target,
        "blame": subject.role,
        "arguments": () if subject.far else _argument_lines(op, case),
    }


def _replay_of(
    finding: Finding, op: Op, subject: Subject, case: Case, origin: Origin, tape: Sequence[int], digest: str
) -> OpReplay:
    return OpReplay(
        target=origin.target,
        tier=finding.tier,
        op=op.name,
        subject=subject.name,
        where=finding.where,
        source_hash=subject.source_hash,
        device=origin.device,
        sizes=case.sizes,
        tensors={name: tensor_to_json(tensor) for name, tensor in case.tensors.items()},
        tape=list(tape),
        seed=origin.seed,
        rule=finding.rule,
        signature=finding.signature,
        title=finding.title,
        digest=digest,
        generator=origin.generator,
    )


def tensor_to_json(tensor: torch.Tensor) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "data": tensor.flatten().tolist()}


def is_case_of(replay: OpReplay, case: Case) -> bool:
    """Whether a case is that of a replay file, NaN for NaN."""
    tensors = {name: tensor_to_json(tensor) for name, tensor in case.tensors.items()}
    return json.dumps([case.sizes, tensors], sort_keys=True) == json.dumps(
        [replay.sizes, replay.tensors], sort_keys=True
    )


def stored_case(op: Op, path: Path) -> Case:
    """The case of a replay file of the operation."""
    stored = replay_file.load(path)
    assert isinstance(stored, OpReplay)
    return case_of(op, stored, path)


def case_of(op: Op, replay: OpReplay, path: Path) -> Case:
    """The case of a replay file, checked against the operation's contract."""
    remedy = "give a replay file that this version of specsim wrote"
    tensors = {}
    for arg in op.tensor_args:
        if arg.role.value == "out":
            continue
        try:
            stored = replay.tensors[arg.name]
            tensors[arg.name] = torch.tensor(stored["data"], dtype=arg.dtype).reshape(stored["shape"])
            fits = tuple(tensors[arg.name].shape) == arg.resolve_shape(replay.sizes)
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise UsageError(f"{path}: tensor {arg.name} of {op.name} cannot be read ({error})", remedy) from error
        if not fits:
            raise UsageError(
                f"{path}: tensor {arg.name} has shape {stored['shape']}, its sizes say "
                f"{list(arg.resolve_shape(replay.sizes))}",
                remedy,
            )
    return Case(dict(replay.sizes), tensors)
