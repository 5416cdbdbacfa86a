"""The command as a user runs it: output, errors and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import save_file

from bpg.cli import main
from bpg.cli import verbs as _verbs  # registers them
from bpg.cli.app import app
from tests.oracles import oracle

assert _verbs
VERBS = [str(command.name) for command in app.registered_commands]


def bpg(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bpg", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A folder with random weights under DeiT-Tiny's name."""
    folder = tmp_path / "weights"
    folder.mkdir()
    state = oracle("timm").create_model("deit_tiny_patch16_224").state_dict()
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, folder / "deit_tiny_patch16_224.safetensors")
    return folder


def test_help_names_every_verb_and_nothing_is_help() -> None:
    found = bpg("--help")
    assert found.returncode == 0
    assert len(VERBS) >= 2
    assert all(verb in found.stdout for verb in VERBS)
    assert bpg().stdout == found.stdout


HEAVY = ("torch", "numpy", "PIL", "safetensors", "huggingface_hub", "sklearn", "matplotlib")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys; from bpg.cli import main; code = main(sys.argv[1:]);"
        f"print('HEAVY:', [name for name in {HEAVY} if name in sys.modules]); sys.exit(code)"
    )
    found = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "HEAVY: []" in found.stdout


def test_every_verb_has_the_common_options_and_examples() -> None:
    for verb in VERBS:
        text = bpg(verb, "--help").stdout
        for option in ("--device", "--threads", "--seed", "--json", "--quiet", "--debug"):
            assert option in text, f"{verb} has no {option}"
        assert f"bpg {verb}" in text.split("Examples:")[1]


def test_version() -> None:
    import bpg as package

    assert bpg("--version").stdout == f"bpg {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learnn"], "No such command 'learnn'"),
        (["doctor", "--jsn"], "No such option: --jsn"),
        (["doctor", "--threads", "0"], "--threads"),
        (["doctor", "--threads", "many"], "--threads"),
        (["doctor", "surplus"], "surplus"),
        (["doctor", "--threads", "100000"], "--threads"),
        (["backbones", "--architecture", "x"], "need a NAME or FILE"),
        (["backbones", "deit_tny_patch16_224"], "Did you mean deit_tiny_patch16_224"),
        (["backbones", "--device", "gpu"], "'gpu' is no device"),
        (["doctor", "--device", "gpu"], "'gpu' is no device"),
    ],
)
def test_wrong_use_exits_with_2_and_a_sentence(arguments: list[str], message: str) -> None:
    found = bpg(*arguments)
    assert found.returncode == 2
    assert message in found.stderr
    assert "try:" in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


def test_a_failure_exits_with_1_and_shows_its_traceback_only_when_asked(tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no weights")
    found = bpg("backbones", str(broken))
    assert found.returncode == 1
    wanted = ("cannot be read", "wanted: a whole safetensors file", "came:   10 bytes", "try:    It may")
    for part in (f"error: {broken}", *wanted):
        assert part in found.stderr
    assert "Traceback" not in found.stderr
    assert "Traceback" in bpg("backbones", str(broken), "--debug").stderr

    error = json.loads(bpg("backbones", str(broken), "--json").stderr)["error"]
    assert sorted(error) == ["came", "problem", "remedy", "wanted"]


def test_a_fault_of_ours_is_a_sentence_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("bpg.cli.doctor.examine", lambda **_: 1 / 0)
    assert main(["doctor"]) == 1
    assert "unexpected ZeroDivisionError" in capsys.readouterr().err


def test_doctor_finds_nothing_wrong_where_all_is_well(weights: Path) -> None:
    found = bpg("doctor", "--threads", "1", BPG_WEIGHTS=str(weights))
    assert found.returncode == 0, found.stdout
    assert "Nothing is wrong." in found.stdout
    assert str(weights / "deit_tiny_patch16_224.safetensors") in found.stdout
    quiet = bpg("doctor", "--quiet", BPG_WEIGHTS=str(weights))
    assert quiet.stdout == "Nothing is wrong.\n"

    report = json.loads(bpg("doctor", "--threads", "1", "--json", BPG_WEIGHTS=str(weights)).stdout)
    assert report["machine"]["threads"] == 1
    assert report["packages"]["torch"]
    assert report["faults"] == []
    assert list(report["weights"]) == ["bpg-vit-nano", "deit_tiny_patch16_224.fb_in1k"]


def test_doctor_speaks_without_torch() -> None:
    script = "import sys; sys.modules['torch'] = None; from bpg.cli import main; sys.exit(main(['doctor']))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "WRONG: torch cannot be imported" in found.stdout
    assert "pip install --force-reinstall 'torch" in found.stdout
    assert "folders\n" in found.stdout  # what needs no torch is examined all the same
    assert found.stderr == ""


def test_warnings_are_remarks(tmp_path: Path) -> None:
    state = oracle("timm").create_model("deit_tiny_patch16_224").state_dict()
    file = tmp_path / "mine.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, file)
    found = bpg("backbones", str(file))
    assert found.returncode == 0
    assert [line[: len("note: ")] for line in found.stderr.splitlines()] == ["note: "] * 2
    quiet = bpg("backbones", str(file), "-q", "--json")
    assert quiet.stderr == ""
    assert json.loads(quiet.stdout)["width"] == 192


def test_doctor_names_what_is_wrong_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = bpg(
        "doctor", "--device", "cuda:77", "--json",
        BPG_WEIGHTS=str(tmp_path / "gone"), BPG_CACHE=str(tmp_path / "file" / "cache"), HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert found.returncode == 1
    faults = json.loads(found.stdout)["faults"]
    assert all(fault["remedy"] for fault in faults)
    fatal = " | ".join(fault["problem"] for fault in faults if fault["fatal"])
    for part in ("no device cuda:77", "$BPG_WEIGHTS points to"):
        assert part in fatal
    notes = " | ".join(fault["problem"] for fault in faults if not fault["fatal"])
    assert "$HF_HUB_OFFLINE" in notes
    assert "cannot be written" in notes  # the cache is a convenience
    assert "no backbone but what ships with bpg" in notes


def test_backbones_lists_what_is_known(weights: Path) -> None:
    lines = bpg("backbones", BPG_WEIGHTS=str(weights)).stdout.splitlines()
    header, *rows = (line.split("\t") for line in lines)  # tab-separated in a pipe
    assert header == [
        "name", "parameters", "megabytes", "pixels", "text", "licence", "s_0", "estimator", "on_disk",
    ]  # fmt: skip
    table = {row[0]: row for row in rows}
    assert table["vit_base_patch16_224.augreg_in21k_ft_in1k"][1:] == [
        "85798656", "343", "224", "no", "Apache-2.0", "0.756", "plain", "no",
    ]  # fmt: skip
    assert table["deit_tiny_patch16_224.fb_in1k"][-1] == "yes"
    document = json.loads(bpg("backbones", "--json", BPG_WEIGHTS=str(weights)).stdout)
    assert {row["name"] for row in document} == set(table)
    assert all(row["s_0_source"] for row in document if row["s_0"] is not None)


def test_backbones_loads_and_describes_one(weights: Path) -> None:
    file = weights / "deit_tiny_patch16_224.safetensors"
    by_file = json.loads(bpg("backbones", str(file), "--json", "--image-size", "96").stdout)
    by_name = json.loads(bpg("backbones", "deit_tiny_patch16_224", "--json", BPG_WEIGHTS=str(weights)).stdout)
    assert by_name["name"] == "deit_tiny_patch16_224.fb_in1k"
    assert (by_name["parameters"], by_name["width"], by_name["depth"]) == (5524416, 192, 12)
    assert by_file["preprocessing"]["size"] == 96
    assert by_file["sha256"] != by_name["sha256"]
    assert "preprocessing" in bpg("backbones", str(file)).stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_not_called_a_fault_of_ours(unbuffered: str) -> None:
    found = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m bpg backbones > /dev/full"],
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "the system refused" in found.stderr
    assert "Exception ignored" not in found.stderr
    closed = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m bpg backbones >&-"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in closed.stderr


def test_a_closed_pipe_is_no_drama() -> None:
    script = f"{sys.executable} -m bpg backbones | head -n 1"
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("name\t")
    assert "Traceback" not in found.stderr
    assert "BrokenPipe" not in found.stderr


def test_interruption_exits_with_130() -> None:
    """A real interrupt, in a process whose verb takes a minute."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import bpg.cli.doctor as d, time, sys; d.examine = lambda **_: time.sleep(60);"
         "print('ready', flush=True); from bpg.cli import main; sys.exit(main(['doctor']))"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == "interrupted"
