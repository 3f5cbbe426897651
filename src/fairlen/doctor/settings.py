"""The settings of a planned run: that they fit together, that programs can be verified, and what would undo fairness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fairlen.doctor.finding import Check, Finding, Plan, bad, doubtful, good
from fairlen.methods.method import Method
from fairlen.methods.plugins import plugins_of
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PolicyGradient
from fairlen.methods.stages.terms import NoCorrection
from fairlen.tasks.source import read_source
from fairlen.train.config import TrainConfig
from fairlen.verify.sandbox import open_sandbox


def check_method(plan: Plan) -> Finding:
    """The method, and what its parts say of one another."""
    if plan.composition is None:
        return bad(plan.complaint, "`fairlen methods` lists names; --help lists settings")
    notes = plan.composition.notes
    if notes:
        return doubtful(
            f"{plan.composition.name}: {'; '.join(notes)}", "read the notes; they are said at the start of a run too"
        )
    return good(plan.composition.name)


def check_fairness(plan: Plan) -> Finding:
    """Settings that bring back what the method takes away."""
    found = list(find_unfair(plan))
    if found:
        return doubtful("; ".join(what for what, _ in found), "; ".join(remedy for _, remedy in found))
    return good("no setting undoes what the method does")


def find_unfair(plan: Plan) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to do)"""
    config = plan.config
    if config.truncations:
        yield (
            f"{config.truncations[0]} with --allow-truncated-sampling: ratios are of another distribution, and long responses "
            "are off by more",
            "leave it off",
        )
    if config.without_verdict == "wrong":
        yield (
            "without_verdict=wrong: long answers take verifiers longer, and what missed a deadline counts as wrong",
            "--without-verdict inactive, and look at verifier/timeout",
        )
    if config.prompts_per_batch < config.updates_per_batch:
        yield (
            f"prompts_per_batch={config.prompts_per_batch} for updates_per_batch={config.updates_per_batch}: "
            "an update has at least one prompt",
            f"--updates-per-batch {config.prompts_per_batch} or fewer",
        )
    if plan.composition is not None:
        yield from find_unfit(config, plan.composition.method)


def find_unfit(config: TrainConfig, method: Method) -> Iterator[tuple[str, str]]:
    """The same of settings that only some methods mind."""
    bands = isinstance(method.surrogate, FairBand)
    if (
        config.updates_per_batch * config.epochs_per_batch == 1
        and not isinstance(method.surrogate, PolicyGradient)
        and bands
    ):
        yield (
            f"updates_per_batch=1: every update is on-policy, so that {type(method.surrogate).__name__} never acts",
            "--updates-per-batch 4",
        )
    if bands and config.dtype == "bfloat16":
        yield (
            "dtype=bfloat16 with FairBand: rounding moves the sum of a long response's log ratios by as much as the band is wide",
            "--dtype float32, or a wider --set surrogate.width",
        )
    if config.engine == "vllm" and method.correction == NoCorrection():
        yield (
            "engine=vllm without a correction: the sampler's log-probs differ from the trainer's, and sums over long responses "
            "differ most",
            "--method …+mismatch",
        )


def check_micro_batches(plan: Plan) -> Finding:
    """One response must fit into a micro-batch, or the memory that it bounds is not bounded."""
    config = plan.config
    longest = config.max_prompt_length + config.max_response_length
    if config.data and config.max_tokens_per_microbatch < longest:
        return doubtful(
            f"max_tokens_per_microbatch={config.max_tokens_per_microbatch}: a prompt of {config.max_prompt_length} "
            f"with {config.max_response_length} tokens has {longest}, "
            "and is read whole: memory is not bounded by max_tokens_per_microbatch",
            f"--max-tokens-per-microbatch {longest} or more, or a smaller --max-response-length",
        )
    return good(f"max_tokens_per_microbatch={config.max_tokens_per_microbatch}")


def check_data(plan: Plan) -> Finding:
    """That every place of --data can be read as one, without reading the problems."""
    places = (*plan.config.data, *plan.config.eval_data)
    for place in places:
        try:
            read_source(place)
        except (ValueError, OSError) as error:
            return bad(str(error), "give a file, a folder or a hub id; docs/data.md has the forms")
    return good(", ".join(places) or f"task {plan.config.task}")


def check_plugins(plan: Plan) -> Finding:
    """What is the user's own: that it is there and loads."""
    try:
        found = plugins_of(plan.config.method, plan.config.task, plan.config.rewards)
    except ValueError as error:
        return bad(str(error), "docs/extending.md has an example of each")
    names = ", ".join(f"{one['setting']} {one['name']}" for one in found)
    untried = "; rewards are tried when the run starts, on its first problem" if plan.config.rewards else ""
    return good(f"{names}{untried}" if names else "none named")


def check_sandbox(plan: Plan) -> Finding:
    """Programs of a model run only where they are contained: proven by attempt."""
    config = plan.config
    if config.unsafe_exec_on_host:
        return doubtful(
            "unsafe_exec_on_host: programs of the model can do whatever you can", "leave it out; use bubblewrap"
        )
    try:
        sandbox = open_sandbox(config.sandbox)
    except ValueError as error:
        what, _, remedy = str(error).partition("\n")
        is_needed = config.sandbox != "auto"
        return (bad if is_needed else doubtful)(what, " ".join(remedy.split()))
    return good(f"{sandbox.name} holds")


def check_clean_records(plan: Plan) -> Finding:
    """Rewards and held-out data that would flatter a run."""
    config = plan.config
    same = sorted({str(Path(p)) for p in config.data} & {str(Path(p)) for p in config.eval_data})
    if same:
        return doubtful(
            f"{same[0]} is trained on and evaluated on", "leave --eval-data out: a part of --data is then held out"
        )
    return good("training and held-out problems are apart")


CHECKS = (
    Check("method", check_method), Check("fairness", check_fairness), Check("micro-batches", check_micro_batches),
    Check("data", check_data), Check("held-out data", check_clean_records), Check("plug-ins", check_plugins),
    Check("sandbox", check_sandbox),
)  # fmt: skip
