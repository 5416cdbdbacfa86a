"""The verbs, one function each; what they need is imported when they run, so that `--help` stays light."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bpg.cli.app import Common, verb


@verb
def doctor(common: Common) -> None:
    """Say what is installed, which device and how many threads are used, which weights are here, and what is wrong.

    Exits with 1 if something is wrong; each fault comes with its remedy.

    Examples:

      bpg doctor

      bpg doctor --json | python -m json.tool
    """
    from bpg.cli.doctor import examine
    from bpg.cli.tables import print_json, print_pairs

    report = examine(device=common.device, threads=common.threads)
    if common.json:
        print_json(report.as_dict())
    else:
        for title, pairs in report.sections.items():
            if not common.quiet:
                print_pairs(title, pairs)
        for fault in report.faults:
            typer.echo(f"{'WRONG' if fault.fatal else 'note'}: {fault.problem}. {fault.remedy}")
        if not report.faults:
            typer.echo("Nothing is wrong.")
    if any(fault.fatal for fault in report.faults):
        raise typer.Exit(1)


@verb
def backbones(
    common: Common,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|FILE]", help="Load this one and say what it is; the list of names if not given."),
    ] = None,
    architecture: Annotated[str | None, typer.Option(help="The known name that says what a bare FILE holds.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Pixels; position embeddings are resized.")] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of the hub's repository.")] = None,
    local_files_only: Annotated[bool, typer.Option("--local-files-only", help="Fetch nothing from the hub.")] = False,
) -> None:
    """List the known backbones, or load one by name, file or hub repository and describe it.

    Weights are looked for in the folder $BPG_WEIGHTS, then in the hub's cache ($HF_HOME), then on the hub unless
    $HF_HUB_OFFLINE is set.

    Examples:

      bpg backbones

      bpg backbones deit_tiny_patch16_224

      bpg backbones weights/my_vit.safetensors --architecture vit_base_patch16_224.augreg_in21k
    """
    from bpg.cli.tables import print_json, print_pairs, print_table

    if source is None:
        if architecture or image_size or revision or local_files_only:
            raise typer.BadParameter(
                "--architecture, --image-size, --revision and --local-files-only need a NAME or FILE"
            )
        from bpg.cli.backbones import TABLE, describe_known

        rows = describe_known()
        if common.json:
            print_json(rows)
        else:
            print_table(rows, columns=TABLE)
            common.say("s_0 is shown where it is known: `bpg backbones --json` tells where it comes from.")
        return
    from bpg.backbones.weights import load_backbone
    from bpg.cli.backbones import describe

    device = common.use_machine()
    backbone = load_backbone(
        source,
        architecture=architecture,
        image_size=image_size,
        device=device,
        revision=revision,
        local_files_only=local_files_only,
    )
    found = describe(backbone)
    if common.json:
        print_json(found)
    else:
        print_pairs(
            backbone.name,
            {key: json.dumps(value) if isinstance(value, dict) else value for key, value in found.items()},
        )


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change a setting; may be given several times."),
]


@verb
def run(
    common: Common,
    config: Annotated[Path, typer.Argument(help="A TOML file: data, backbone, methods, seeds.")],
    out: Annotated[Path, typer.Option(help="Where the runs are kept.")] = Path("runs"),
    set_: Set = None,
) -> None:
    """Run a stream with every method and seed that a file names, and leave records for `bpg report`.

    Each method with each seed is a directory of its own. A run that was stopped goes on where it was; one that is
    finished is not run again. The seeds are those of the file: --set seeds=[0] takes others.

    Examples:

      bpg run configs/pacs-deit-tiny.toml

      bpg run configs/pacs-deit-tiny.toml --set seeds=[0] --set methods.bpg.r0=32 --out trials
    """
    from bpg.cli.experiments import run_spec

    run_spec(common, config, out, set_ or [])
