"""Log run folders to Weights & Biases: `python -m analysis.wandb RUN_DIR...`, offline unless asked otherwise.

A comparison is a group: a run per controller and one of the whole, opened first and closed last, so that the group is
complete exactly when that one has finished. An experiment of the papers is one run. Owns the order and the messages;
what is logged is `analysis.logged`'s, under the names of `analysis.keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq

from analysis import keys
from analysis.logged import Controller, Logged, fit_name, logged
from analysis.runs import Paper, read_runs
from analysis.tracking import (
    DISABLED,
    MODES,
    OFFLINE,
    Tracking,
    check_folder,
    closing,
    define_axes,
    log_files,
    log_table,
    open_run,
    wandb_folder,
)
from specsim.errors import ConfigError, SpecsimError, run_cli
from specsim.paths import replace_file, temporary_beside

MOST_ROWS = 10_000  # of a table; Weights & Biases shows no more
Save = Callable[[Any], object]


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Whatever wandb raises in the block, as one line about what it means.

    Raises:
        ConfigError: the block failed.
    """
    try:
        yield
    except SpecsimError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"W&B: {doing} failed ({reason}); its run is marked as failed, and only groups named above are complete; "
            "repeat the command when the cause is gone (--mode offline needs no server, no account and no network)"
        ) from error


def log_group(tracking: Tracking, one: Logged, *, folder: Path, group: str) -> str | None:
    """Log a comparison as a group of runs. One whose run folder was not finished is marked as failed.

    Returns:
        The entity that owns the runs, online.

    Raises:
        ConfigError: logging failed; the run of the whole is marked as failed.
    """
    with explained(f"logging {one.name}"):
        check_folder(folder)

        def opened(job_type: str, name: str, config: dict[str, Any]) -> Any:
            return open_run(
                tracking, folder, group=group, job_type=job_type, name=name, config={**one.config, **config}
            )

        whole = opened(keys.COMPARISON, keys.COMPARISON, {})
        with closing(whole, failed=not one.finished):
            for controller in one.controllers:
                with closing(opened(keys.CONTROLLER, controller.label, dict(controller.config))) as run:
                    _log_controller(run, controller)
            _log_whole(whole, one, group)
            check_folder(folder)
        return whole.entity or None


def _log_controller(run: Any, controller: Controller) -> None:
    define_axes(run)
    for point in controller.points():
        run.log(point)
    run.summary.update(keys.summary_of(controller.result))


def _log_whole(whole: Any, one: Logged, group: str) -> None:
    if one.controllers:
        rows = [keys.row_of(controller.result) for controller in one.controllers]
        log_table(whole, keys.CONTROLLERS, keys.CONTROLLER_COLUMNS, rows)
    for controller in one.controllers:
        whole.summary.update(keys.of_whole(controller.label, keys.summary_of(controller.result)))
    if one.best is not None:
        best = {keys.BEST_CONTROLLER: one.best.label, keys.BEST_SPEEDUP: one.best.result["speedup"]}
        whole.summary.update(best)
    if one.latency is not None:
        document, rows = one.latency
        log_table(whole, keys.LATENCY, keys.LATENCY_COLUMNS, rows)
        whole.config.update({keys.LATENCY_MODEL: dict(document)})
    for kind, paths in one.files.items():
        log_files(whole, f"{kind}-{group}", kind, paths)


def log_paper(tracking: Tracking, paper: Paper, *, folder: Path, group: str) -> str | None:
    """Log an experiment of the papers as one run: its tables, those of its figures, and the files.

    Returns:
        The entity that owns the run, online.

    Raises:
        ConfigError: logging failed; the run is marked as failed.
    """
    document = paper.document
    config = {key: document[key] for key in ("experiment", "config", keys.PROVENANCE, "machines") if key in document}
    with explained(f"logging {paper.name}"):
        check_folder(folder)
        whole = open_run(
            tracking,
            folder,
            group=group,
            job_type=keys.PAPER,
            name=paper.name,
            config={**config, keys.KIND: keys.PAPER},
        )
        with closing(whole):
            for name, file in paper.tables.items():
                if pq.read_metadata(file).num_rows <= MOST_ROWS:
                    table = pq.read_table(file)
                    log_table(whole, name, table.column_names, [list(row.values()) for row in table.to_pylist()])
            log_files(whole, f"paper-{group}", keys.PAPER, [paper.folder / "results.json", *paper.tables.values()])
            check_folder(folder)
        return whole.entity or None


def save_boards(entity: str, project: str, groups: Sequence[str], save: Save = lambda board: board.save()) -> list[str]:
    """Save a workspace and a report that show these groups; their addresses.

    Args:
        entity, project: of the runs.
        groups: whose runs are shown.
        save: sends one.

    Raises:
        ConfigError: saving failed; the runs are not touched by that.
    """
    from analysis import boards  # wandb-workspaces is only needed here, and slow to import

    try:
        made = [boards.workspace(entity, project, groups), boards.report(entity, project, groups)]
        for board in made:
            save(board)
        return [board.url for board in made]
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"W&B: saving the dashboards failed ({reason}); the runs are logged and complete") from error


def tracking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how to track."""
    where = "Where wandb/ with the runs' files goes, unless WANDB_DIR says otherwise."
    for option in (
        click.option("--dir", "folder", default=Path(), type=click.Path(path_type=Path), help=where),
        click.option("--group", callback=_fit, help="One group for everything; default: one each, by its name."),
        click.option("--entity", help="Who owns the runs; default: your own account."),
        click.option("--project", default=keys.PROJECT, help="Of the runs."),
        click.option("--mode", type=click.Choice(MODES), help="Default: what WANDB_MODE says, else offline."),
    ):
        command = option(command)
    return command


def _fit(context: click.Context, parameter: click.Parameter, group: str | None) -> str | None:
    if group is not None and fit_name(group) != group:
        raise ConfigError(f"--group {group!r}: allowed are letters, digits, '.', '_' and '-'; try {fit_name(group)!r}")
    return group


def report_place(tracking: Tracking, folder: Path) -> None:
    """Say where offline runs lie."""
    if tracking.effective_mode == OFFLINE:
        click.echo(f"offline; send it with: wandb sync {folder}/wandb/offline-run-*")


@click.command(context_settings={"show_default": True})
@click.argument("folders", nargs=-1, required=True, metavar="RUN_DIR...", type=click.Path(path_type=Path))
@click.option("--view", type=click.Path(path_type=Path), help="Also write the panels as a local page, FILE.html.")
@tracking_options
def main(
    folders: tuple[Path, ...],
    view: Path | None,
    mode: str | None,
    project: str,
    entity: str | None,
    group: str | None,
    folder: Path,
) -> None:
    """Log replays, real runs, validations and experiments of the papers to Weights & Biases.

    RUN_DIR are folders of specsim.replay --out, real.run, real.validate and real.paper. The same keys and panels as
    live runs have. Nothing is sent unless --mode online or WANDB_MODE=online asks for it.
    """
    tracking = Tracking(mode=mode, project=project, entity=entity)
    loaded = read_runs(folders)
    if not loaded.runs and not loaded.papers:
        raise ConfigError("no run was named, only documents; name folders of runs")
    if view is not None:
        if not loaded.runs:
            raise ConfigError(f"--view {view}: only comparisons are shown, and none was named")
        temporary_beside(view).unlink()  # refused now rather than after logging
    off = tracking.effective_mode == DISABLED
    place, groups, owner = wandb_folder(folder), [], entity
    shown: list[Logged] = []
    for one in logged(loaded.runs):
        if view is not None:
            shown.append(one)
        if not off:
            owner = log_group(tracking, one, folder=place, group=group or one.name) or owner
            groups.append(group or one.name)
            _tell(one, groups[-1])
    for paper in loaded.papers if not off else ():
        name = group or fit_name(paper.name)
        owner = log_paper(tracking, paper, folder=place, group=name) or owner
        groups.append(name)
        click.echo(f"{name}: experiment {paper.experiment}, {len(paper.tables)} tables")
    if view is not None:
        _write_view(view, shown)
    if off:
        click.echo("W&B is disabled (--mode or WANDB_MODE): nothing is logged")
        return
    report_place(tracking, place)
    if tracking.effective_mode == "online" and owner is not None:
        for address in save_boards(owner, project, list(dict.fromkeys(groups))):
            click.echo(address)


def _write_view(view: Path, shown: Sequence[Logged]) -> None:
    from analysis.view import page  # plotly is slow to import

    with replace_file(view) as temporary:
        temporary.write_text(page(shown), encoding="utf-8")
    click.echo(f"panels in {view}")


def _tell(one: Logged, group: str) -> None:
    curves = [controller.curve for controller in one.controllers if controller.curve is not None]
    points = sum(curve.count for curve in curves)
    rounds = sum(curve.rounds for curve in curves)
    thinned = f"{rounds} rounds" + (f" in {points} points" if points != rounds else "")
    state = "" if one.finished else ", marked as failed: the run was not finished"
    click.echo(f"{group}: {len(one.controllers)} controllers, {thinned}{state}")
    for note in one.notes:
        click.echo(f"  {note}")


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.wandb")
