"""The protos keep Buf's rules."""

import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parents[3]
BUF = pathlib.Path(sys.executable).parent / "buf"

if not BUF.exists():
    pytest.skip("buf is not installed", allow_module_level=True)


def buf(*arguments):
    return subprocess.run([BUF, *arguments], cwd=SOURCE, capture_output=True, text=True)


def test_lint_finds_nothing():
    result = buf("lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_lint_would_find_a_field_without_a_comment(tmp_path):
    """The rules are on: a bad file is refused."""
    folder = tmp_path / "proto" / "switchyard" / "bad" / "v1"
    folder.mkdir(parents=True)
    (folder / "bad.proto").write_text(
        'syntax = "proto3";\npackage switchyard.bad.v1;\nmessage Bad { int32 camelCase = 1; }\n'
    )
    (tmp_path / "buf.yaml").write_text((SOURCE / "buf.yaml").read_text())
    result = subprocess.run([BUF, "lint"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode != 0
    assert "camelCase" in result.stdout


def test_changes_break_no_client():
    result = buf("breaking", "--against", str(SOURCE / "tests/data/protos/stored.binpb"))
    assert result.returncode == 0, result.stdout + result.stderr
