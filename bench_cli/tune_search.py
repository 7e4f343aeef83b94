"""The search of ``blockbench tune``: its study, and a bar for who watches."""

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

    from bench_cli.tune_question import Asked
    from harness.tuning.question import Answer
    from harness.tuning.search import Search


def search(asked: "Asked", seed: int, storage: str | None) -> "Answer":
    """Search with a bar for who watches: trials done, and the best so far."""
    from bench_cli.progress import search_bar
    from harness.tuning.tuner import tune as answer

    study = make_study(asked, seed, storage)
    limit = asked.question.budget.num_trials
    with search_bar(limit) as bar:
        return answer(
            asked.question, asked.engine, study, on_trial=lambda s: bar(*best_of(s))
        )


def best_of(found: "Search") -> tuple[int, str]:
    """Settings tried, and the best of them in a few words."""
    from bench_cli.tune_words import shown

    best = found.best
    if best is None:
        return len(found.trials), ""
    changes = [f"{n} {shown(v)}" for n, v in best[0].items() if v != found.start[n]]
    return len(
        found.trials
    ), f"{best[1].loss:.4g} with {', '.join(changes) or 'no change'}"


def make_study(asked: "Asked", seed: int, storage: str | None) -> "optuna.Study":
    """What remembers trials and suggests others; a storage is gone on from."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(
        seed=seed, multivariate=True, constant_liar=True, n_startup_trials=8
    )
    name = study_name(asked)
    if storage is None:
        return optuna.create_study(sampler=sampler, study_name=name)
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return optuna.create_study(
            sampler=sampler, storage=storage, study_name=name, load_if_exists=True
        )
    except (
        SQLAlchemyError,
        optuna.exceptions.OptunaError,
        ImportError,
        OSError,
        ValueError,
    ) as error:
        from harness.errors import UsageError

        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--storage cannot be used: {reason}; give one as sqlite:///tune.db"
        ) from error


def study_name(asked: "Asked") -> str:
    """A name that only the same question has, so that no other one's losses mix in."""
    engine, space = asked.engine, asked.question.space
    info = engine.make_info(engine.workload, asked.start, engine.objective)
    question = [
        info.to_dict(),
        dict(engine.fixed),
        dict(space.choices),
        engine.objective.name.value,
    ]
    text = json.dumps(question, sort_keys=True, default=str)
    return f"blockbench-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
