"""The verbs, one function each; what they need is imported when they run, so that `--help` stays light."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bpg.cli.app import Common, app, data, register, verb
from bpg.data.folder import TEST_SHARE
from bpg.errors import unknown_name

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model's folder.")]
Weights = Annotated[
    str | None,
    typer.Option("--backbone", metavar="NAME|FILE", help="Where the weights are, if they are not found by name."),
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a setting; may be given several times.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at images that cannot be read.")]
TestShare = Annotated[
    float,
    typer.Option(min=0, max=1, help="Where the data has no split of its own: the share to test on, chosen by name."),
]
MixtureOption = Annotated[
    str | None, typer.Option("--mixture", help="Who speaks and how loud: calibrated, or as in the paper: paper.")
]
RouterOption = Annotated[
    str | None,
    typer.Option(
        "--router",
        help="In the mixture's place: calibrated, soft, hard, own (a method's own), or a plug-in's.",
    ),
]
FusionOption = Annotated[
    str | None,
    typer.Option(
        "--fusion", help="In the mixture's place: probabilities, threshold+l1, threshold+l2, threshold+mean, mean, max."
    ),
]
RouteDepth = Annotated[
    int | None,
    typer.Option(min=0, help="Route after this many blocks: sooner done; 0 is after the last (`evaluate --profile`)."),
]
MaxExperts = Annotated[int | None, typer.Option(min=1, help="At most so many experts speak on an image.")]
ArithmeticOption = Annotated[
    str | None,
    typer.Option("--arithmetic", help="Of the frozen backbone: exact, 8-bit or graph (on a CPU), half (on a GPU)."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images at a time; answers do not depend on it.")]


@verb
def demo(
    common: Common,
    out: Annotated[Path, typer.Option(help="Where the model and the page go.")] = Path("bpg-demo"),
    set_: Changes = None,
) -> None:
    """See it work, offline, in a few minutes: six drawing styles learned one after another, and what is kept of each.

    Images and backbone ship with the package. Interrupted, the same command goes on where it was.

    Examples:

      bpg demo

      bpg demo --out elsewhere --set data.per_class=10
    """
    from bpg.cli.demo import run_demo

    run_demo(common, out, set_ or [])


@verb
def learn(
    common: Common,
    model: Model,
    images: Annotated[Path, typer.Argument(metavar="DIR", help="The domain's images, a folder a class; or a list.")],
    name: Annotated[str | None, typer.Option(help="The domain's name; the folder's if not given.")] = None,
    backbone: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The frozen backbone; a new model needs one.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Of a new model; bpg if not given (`bpg methods`).")] = None,
    set_: Changes = None,
    test_share: TestShare = TEST_SHARE,
    allow_new_classes: Annotated[bool, typer.Option("--allow-new-classes", help="Take in unknown classes.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Learn a domain anew that the model knows already.")] = False,
    strict: Strict = False,
) -> None:
    """Teach a model a domain: a new model, or one that knows others and stays right on them.

    DIR holds a folder for each class. A fifth of the images is held out to tell how well it went, chosen by their
    names, so that the same ones are held out again (--test-share 0 learns from all). Folders train and test inside
    DIR are taken as they are. Interrupted, the same command goes on where it was.

    Examples:

      bpg learn model photos --name photo --backbone deit_tiny_patch16_224

      bpg learn model sketches --name sketch

      bpg learn model photos --backbone my_vit.safetensors --set rank=16 --set optimisation.epochs=10
    """
    from bpg.cli.learning import learn_domain

    learn_domain(
        common,
        model,
        images,
        name=name,
        method=method,
        backbone=backbone,
        changes=set_ or [],
        test_share=test_share,
        strict=strict,
        allow_new_classes=allow_new_classes,
        again=again,
    )


@verb
def predict(
    common: Common,
    model: Model,
    files: Annotated[list[Path], typer.Argument(metavar="FILES-OR-DIRS...", help="Images, and folders of them.")],
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    backbone: Weights = None,
    mixture: MixtureOption = None,
    router: RouterOption = None,
    fusion: FusionOption = None,
    route_depth: RouteDepth = None,
    max_experts: MaxExperts = None,
    arithmetic: ArithmeticOption = None,
    batch_size: BatchSize = 32,
    strict: Strict = False,
) -> None:
    """Say what images show, how sure that is, and which domains' experts said so.

    Images may come from any domain; nobody has to say from which.

    Examples:

      bpg predict model photo.jpg

      bpg predict model inbox --csv > answers.csv

      bpg predict model inbox --json | python -m json.tool
    """
    from bpg.cli.answering import predict_files

    predict_files(
        common,
        model,
        files,
        backbone=backbone,
        options={
            "mixture": mixture,
            "router": router,
            "fusion": fusion,
            "route_depth": route_depth,
            "max_experts": max_experts,
            "arithmetic": arithmetic,
        },
        as_csv=csv,
        strict=strict,
        batch_size=batch_size,
    )


@verb
def evaluate(
    common: Common,
    model: Model,
    images: Annotated[Path, typer.Argument(metavar="DATA", help="One domain or several, in any known layout.")],
    name: Annotated[str | None, typer.Option(help="The domain's name, if DATA is one domain.")] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Several mixtures side by side, and the oracle, which is told the domain."),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="What each way to answer faster costs: accuracy, agreement, images/s.")
    ] = False,
    backbone: Weights = None,
    mixture: MixtureOption = None,
    router: RouterOption = None,
    fusion: FusionOption = None,
    route_depth: RouteDepth = None,
    max_experts: MaxExperts = None,
    arithmetic: ArithmeticOption = None,
    test_share: TestShare = TEST_SHARE,
    batch_size: BatchSize = 32,
    strict: Strict = False,
) -> None:
    """Say how much of a test set a model gets right, domain by domain.

    Without test folders, the images that `bpg learn` held out are tested on; --test-share 1 takes all of them. A list
    is taken whole.

    Examples:

      bpg evaluate model photos --name photo

      bpg evaluate model data --compare

      bpg evaluate model data --profile
    """
    from bpg.cli.answering import evaluate_model

    evaluate_model(
        common,
        model,
        images,
        name=name,
        backbone=backbone,
        options={
            "mixture": mixture,
            "router": router,
            "fusion": fusion,
            "route_depth": route_depth,
            "max_experts": max_experts,
            "arithmetic": arithmetic,
        },
        compare=compare,
        profiled=profile,
        test_share=test_share,
        strict=strict,
        batch_size=batch_size,
    )


@register(app, "tune-routing")
def tune_routing(
    common: Common,
    model: Model,
    data: Annotated[Path, typer.Option(metavar="DATA", help="Images of all the model's domains, in any known layout.")],
    save: Annotated[bool, typer.Option("--save", help="Let the model answer so from now on.")] = False,
    name: Annotated[str | None, typer.Option(help="The domain's name, if DATA is one domain.")] = None,
    backbone: Weights = None,
    test_share: TestShare = TEST_SHARE,
    batch_size: BatchSize = 32,
    strict: Strict = False,
) -> None:
    """Find out how early a model can tell its domains apart: the sooner, the faster its answers.

    A model keeps what it needs to route at several depths of the backbone. Which one is worth taking is measured here,
    on images of all its domains that it did not learn from. --save needs images of every one of them.

    Examples:

      bpg tune-routing model --data data

      bpg tune-routing model --data data --save
    """
    from bpg.cli.answering import tune_routing as tune

    tune(
        common,
        model,
        data,
        name=name,
        backbone=backbone,
        test_share=test_share,
        strict=strict,
        batch_size=batch_size,
        save=save,
    )


@verb
def inspect(common: Common, model: Model) -> None:
    """Look into a model: its domains with s_t, r_t and size, how far they lie apart, its classes, its history.

    The backbone is not needed.

    Examples:

      bpg inspect model

      bpg inspect model --json
    """
    from bpg.cli.models import inspect_model

    inspect_model(common, model)


@verb
def forget(
    common: Common,
    model: Model,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The domain to take out.")],
    purge_cache: Annotated[
        bool,
        typer.Option("--purge-cache", help="Remove cached pixels and features too, of all models on this machine."),
    ] = False,
) -> None:
    """Take a domain out of a model: what is left is the model that never learned it, bit for bit.

    Examples:

      bpg forget model sketch

      bpg forget model sketch --purge-cache
    """
    from bpg.cli.models import forget_domain

    forget_domain(common, model, name, purge_cache=purge_cache)


@verb
def merge(
    common: Common,
    model: Model,
    others: Annotated[list[Path], typer.Argument(metavar="OTHERS...", help="Models whose domains are taken over.")],
    allow_new_classes: Annotated[bool, typer.Option("--allow-new-classes", help="Take in unknown classes.")] = False,
) -> None:
    """Give a model the domains of others: the result is the model that learned them all, bit for bit.

    MODEL may be a new folder. The models must have the same backbone, method and settings.

    Examples:

      bpg merge model model-from-site-b

      bpg merge both site-a site-b
    """
    from bpg.cli.models import merge_models

    merge_models(common, model, others, allow_new_classes=allow_new_classes)


@verb
def plan(
    common: Common,
    images: Annotated[Path, typer.Argument(metavar="DATA", help="One domain or several, in any known layout.")],
    backbone: Annotated[str | None, typer.Option(metavar="NAME|FILE", help="The frozen backbone.")] = None,
    set_: Changes = None,
    megabytes: Annotated[
        float | None, typer.Option(min=0, help="What all experts may weigh; solved for lambda.")
    ] = None,
    test_share: TestShare = TEST_SHARE,
    strict: Strict = False,
) -> None:
    """Say what each domain would get and cost, before anything is trained: s_t, r_t, parameters, megabytes, time.

    Surveys the training images once; the features are kept for `bpg learn`.

    Examples:

      bpg plan data --backbone deit_tiny_patch16_224

      bpg plan data --backbone deit_tiny_patch16_224 --set r0=16 --set optimisation.epochs=10

      bpg plan data --backbone deit_tiny_patch16_224 --megabytes 20
    """
    from bpg.cli.planning import plan_domains

    plan_domains(
        common,
        images,
        backbone=backbone,
        changes=set_ or [],
        megabytes=megabytes,
        test_share=test_share,
        strict=strict,
    )


@verb
def reference(
    common: Common,
    images: Annotated[
        Path, typer.Argument(metavar="DIR", help="Images that the backbone was trained on, a folder a class.")
    ],
    backbone: Annotated[str, typer.Option(metavar="NAME|FILE", help="The frozen backbone.")],
    strict: Strict = False,
) -> None:
    """Measure s_0, the separability of a backbone's own training images, against which r_t is set.

    Examples:

      bpg reference imagenet-sample --backbone my_vit.safetensors
    """
    from bpg.cli.planning import measure_reference

    measure_reference(common, images, backbone=backbone, strict=strict)


@verb
def methods(
    common: Common,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Say which settings it has.")] = None,
) -> None:
    """List the methods, or the settings of one with their defaults.

    Examples:

      bpg methods

      bpg methods bpg
    """
    from bpg.cli.models import describe_methods

    describe_methods(common, name)


@verb
def run(
    common: Common,
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="A TOML file: data, backbone, methods, seeds; or the name of one that ships."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where the runs are kept.")] = Path("runs"),
    set_: Changes = None,
    strict: Strict = False,
) -> None:
    """Run a stream with every method and seed that a file names, and leave records for `bpg report`.

    Each method with each seed is a directory of its own. A run that was stopped goes on where it was; one that is
    finished is not run again. The seeds are those of the file, or one with --seed.

    Examples:

      bpg run pacs-deit-tiny

      bpg run pacs-deit-tiny --seed 0 --out trials

      bpg run my.toml --set methods.bpg.r0=32
    """
    from bpg.cli.experiments import run_spec

    run_spec(common, config, out, (set_ or []) + (["data.strict=true"] if strict else []))


@verb
def report(
    common: Common,
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Folders that `bpg run` wrote to.")],
    out: Annotated[
        Path | None, typer.Option(help="Where report.md and report.html go; the first of RUNS if not given.")
    ] = None,
    images: Annotated[bool, typer.Option("--images/--no-images", help="Show pictures of the data set.")] = True,
    data: Annotated[Path | None, typer.Option(help="Where the data lies, if it has moved.")] = None,
) -> None:
    """Make a page of runs: tables as Markdown, and one HTML file that needs nothing else.

    Examples:

      bpg report runs/pacs-deit-tiny

      bpg report runs/pacs-deit-tiny --no-images --out docs/results/pacs-deit-tiny
    """
    from bpg.cli.experiments import write_report

    write_report(common, runs, out, images=images, data=data)


@verb
def reproduce(
    common: Common,
    items: Annotated[
        list[str], typer.Argument(metavar="ITEM...", help="Tables and figures by name; all; or list, which tells them.")
    ],
    scale: Annotated[str, typer.Option(help="paper, small or demo: which data and settings; or a TOML file.")] = "demo",
    out: Annotated[Path | None, typer.Option(help="Where tables and figures go.  [default: reproduced/SCALE]")] = None,
    runs: Annotated[Path, typer.Option(help="Where the runs are kept; finished ones are not run again.")] = Path(
        "runs"
    ),
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would run and what it would take; run nothing.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only runs whose title fits; surveys are done anyway.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many runs, spread over the grid.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: tasks of a Ray cluster.")] = "local",
    processes: Annotated[int, typer.Option(min=1, max=256, help="Jobs at a time, on this machine.")] = 1,
    split: Annotated[
        bool, typer.Option("--split", help="Learn the domains of isolated methods apart, then merge: the same bytes.")
    ] = False,
    cpus: Annotated[float, typer.Option(min=0, help="Cores of a Ray worker for a job.")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of a Ray worker for a job.")] = 0.0,
    track: Annotated[Path | None, typer.Option(help="Write TensorBoard's logs there, too.")] = None,
) -> None:
    """Make the tables and figures of the paper from runs of our own, at one of three scales.

    Runs that are finished are not run again; killed, the same command goes on where it was. Data is looked for in
    $BPG_DATA, weights in $BPG_WEIGHTS.

    Examples:

      bpg reproduce list

      bpg reproduce parameters

      bpg reproduce weighting --scale demo --limit 1

      bpg reproduce all --scale paper --plan
    """
    from bpg.cli.reproduction import reproduce_verb

    reproduce_verb(
        common,
        items,
        scale=scale,
        out=out,
        runs=runs,
        plan=plan,
        only=only,
        limit=limit,
        engine=engine,
        split=split,
        processes=processes,
        cpus=cpus,
        gpus=gpus,
        track=track,
    )


@verb
def status(
    common: Common,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder that `bpg reproduce` writes to.")] = Path(
        "reproduced/demo"
    ),
    runs: Annotated[Path, typer.Option(help="Where the runs are kept.")] = Path("runs"),
    processes: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Jobs at a time, for the time left.  [default: those running]")
    ] = None,
) -> None:
    """Say how a grid stands: jobs done, running, failed with the reason, and how long the rest may take.

    Examples:

      bpg status reproduced/demo
    """
    from bpg.cli.reproduction import show_status

    show_status(common, out, runs, processes=processes)


@register(data, "list")
def list_benchmarks(common: Common) -> None:
    """List the benchmarks that are known by name: what they are, how they are licensed, where to get them.

    Examples:

      bpg data list
    """
    from bpg.cli.data import print_benchmarks

    print_benchmarks(common)


@register(data, "verify")
def verify_benchmark(
    common: Common,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `bpg data list` tells.")],
    root: Annotated[
        Path | None,
        typer.Argument(metavar="ROOT", help="The folder or archive it lies in; not needed for what ships with bpg."),
    ] = None,
    duplicates: Annotated[
        bool,
        typer.Option(
            "--duplicates/--no-duplicates", help="Whether pictures on both sides, or of two classes, are wrong."
        ),
    ] = True,
    again: Annotated[bool, typer.Option("--again", help="Read every image, also what did not change since.")] = False,
) -> None:
    """Read, count and hash a benchmark's images and hold them against what was published. Exits with 1 if they differ.

    Files that did not change since they were last read are not read again, unless it is asked for.

    Examples:

      bpg data verify emoji

      bpg data verify emoji --json | python -m json.tool
    """
    from bpg.cli.data import print_verified

    if not print_verified(common, name, root, duplicates=duplicates, again=again):
        raise typer.Exit(1)


@register(data, "prepare")
def prepare_data(
    common: Common,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `bpg data list` tells.")],
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="The folder to put it in.")],
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="A folder of another server that has the same files.")
    ] = None,
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Unpack archives, too; they are read as they are without it.")
    ] = False,
    images: Annotated[
        Path | None, typer.Option(help="Images to make it from, for what is made: a folder or archive of one domain.")
    ] = None,
) -> None:
    """Fetch a benchmark into a folder. What was cut goes on where it was; what is there is not fetched again.

    Examples:

      bpg data prepare domainnet data/domainnet

      bpg data prepare corruptions data/corrupted --images photos
    """
    from bpg.cli.data import prepare_benchmark

    prepare_benchmark(common, name, root, mirror=mirror, unpacking=unpack, images=images)


@register(data, "pack")
def pack_data(
    common: Common,
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="A folder of images, of any layout.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    kind: Annotated[
        str,
        typer.Option(
            "--as", metavar="KIND", help="zip: one archive. shards: tars of a gigabyte, as WebDataset has them."
        ),
    ] = "shards",
) -> None:
    """Pack many small files into few large ones, which are read as they are.

    Examples:

      bpg data pack data/domainnet packed/domainnet
    """
    from bpg.cli.data import pack_folder

    if kind not in ("zip", "shards"):
        raise unknown_name("kind of archive", kind, ("zip", "shards"))
    pack_folder(common, root, out, "zip" if kind == "zip" else "shards")


@register(data, "sample")
def sample_data(
    common: Common,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `bpg data list` tells.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    per_class: Annotated[int, typer.Option(min=1, help="Images to learn from, a class and domain.")] = 2,
    classes: Annotated[
        int | None, typer.Option(min=2, help="Only the first so many classes, where the benchmark leaves that open.")
    ] = None,
) -> None:
    """Write a small tree in a benchmark's layout, with drawn pictures, to try things out.

    Examples:

      bpg data sample core50 /tmp/core50 --classes 10
    """
    from bpg.cli.data import write_sample_of

    write_sample_of(common, name, out, per_class=per_class, classes=classes)


@verb
def bench(
    common: Common,
    parts: Annotated[list[str] | None, typer.Argument(metavar="[PART]...", help="Which parts; all if none.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write performance.md, its figures and the numbers as JSON into this folder.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often each work is measured, in turns; 7, or 3 where it takes long.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(metavar="NAME", help="The shape to measure with, in the place of ViT-B and DeiT-Tiny.")
    ] = None,
) -> None:
    """Measure how fast bpg is on this machine, as ratios to what people would use instead.

    The parts: engine, domains, batches, choices, training, data, files, growth-domains, growth-batches, growth-ranks,
    growth-images. Each takes minutes on a CPU; with --out it is kept as it ends. timm and peft are measured beside it
    where they are installed. Nothing is downloaded: weights are random, and nothing depends on the seed.

    Examples:

      bpg bench engine --backbone bpg-vit-nano --rounds 3

      bpg bench --out docs
    """
    from bpg.cli.bench import run_bench

    run_bench(common, parts or [], out, rounds, backbone)


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
