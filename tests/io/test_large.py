"""Large robots load in linear time and memory, whatever their shape."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import torchsko as ts

LINK = (
    '<link name="l{0}"><inertial><origin xyz="0.1 0 0"/><mass value="1"/>'
    '<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>'
)
JOINT = (
    '<joint name="j{1}" type="{2}"><origin xyz="0.1 0 0" rpy="0.1 0 0"/><axis xyz="0 0 1"/>'
    '<parent link="l{0}"/><child link="l{1}"/></joint>'
)
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads Linux's /proc"
)
MEASURE = """
import json, sys, time
import torchsko as ts

def peak():
    # Not getrusage: a process begins there with the peak of the one that started it.
    (most,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(most) / 1024

if sys.argv[1:]:
    __import__(sys.argv[1])  # another package that a format needs: its own time is not ours
text = sys.stdin.read()
before = peak()
start = time.process_time()
found = ts.load(text).num_bodies
seconds = time.process_time() - start
megabytes = peak() - before
print(json.dumps([found, seconds, megabytes]))
"""


def robot(parents: list[int], kind: str = "continuous", link: str = LINK) -> str:
    """A robot whose link k + 1 hangs on link parents[k]."""
    links = "".join(link.format(k) for k in range(len(parents) + 1))
    joints = "".join(JOINT.format(p, k + 1, kind) for k, p in enumerate(parents))
    return f'<robot name="large">{links}{joints}</robot>'


def measured(text: str, *parser: str) -> tuple[int, float, float]:
    """Number of bodies, CPU time [s] and memory [MB] of loading it in a process of its own.

    A first load opens rooms that an import leaves shut, and its time holds that; bytecode is kept, as it
    is wherever torchsko is installed.
    """
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", MEASURE, *parser]
    run = subprocess.run(
        command, input=text, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


N = 5000
CHAIN, STAR = list(range(N)), [0] * N
WELDED = robot(CHAIN[:1500], "fixed").replace('"fixed"', '"continuous"', 1)


@pytest.mark.nightly
@pytest.mark.parametrize("parents", [CHAIN, STAR], ids=["chain", "children"])
def test_5000_links_load_within_10_s_and_300_mb(parents):
    bodies, seconds, megabytes = measured(robot(parents))
    assert bodies == N
    assert seconds < 10 and megabytes < 300


@pytest.mark.some(3)
@pytest.mark.filterwarnings("ignore::torchsko.RobotFileWarning")
@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (WELDED, 0),
        (robot(CHAIN[:1500], link='<link name="l{0}"/>'), 1500),
        (WELDED.replace('izz="1"', 'izz="3"'), 1),
        (robot([*range(750), 1500, *range(751, 1500)]), None),
    ],
    ids=["welded", "massless", "not physical", "cycle"],
)
def test_no_shape_of_robot_takes_time_that_grows_with_the_square(text, faults):
    """1500 links of each sort within 5 s: welded, without mass, with dummy inertias, in a cycle."""
    start = time.process_time()
    if faults is None:
        with pytest.raises(ts.TreeError, match="cycle"):
            ts.load(text)
    else:
        assert len(ts.load(text).report) >= faults
    assert time.process_time() - start < 5


@pytest.mark.nightly
def test_a_humanoid_of_40_dofs_loads_within_300_ms_in_a_fresh_process():
    legs = [0, *range(1, 6), 0, *range(7, 12)]
    arms = [
        0,
        *range(13, 20),
        13,
        *range(21, 27),
        20,
        20,
        20,
        20,
        20,
        20,
        27,
        27,
        27,
        27,
        27,
        13,
        0,
    ]
    measured(robot([0]))  # leaves bytecode
    bodies, seconds, _ = measured(robot([*legs, *arms]))
    assert bodies == 40 and seconds < 0.3


def model(parents: list[int]) -> str:
    """The same robot in MJCF: body k + 1 hangs on body parents[k]."""
    children: dict[int, list[int]] = {}
    for k, p in enumerate(parents):
        children.setdefault(p, []).append(k + 1)

    def body(k: int) -> str:
        inside = "".join(map(body, children.get(k, [])))
        joint = f'<joint name="j{k}" axis="0 0 1"/>' if k else ""
        inertial = '<inertial pos="0.1 0 0" mass="1" diaginertia="1 1 1"/>'
        return f'<body name="l{k}" pos="0.1 0 0">{joint}{inertial}{inside}</body>'

    return f"<mujoco><worldbody>{body(0)}</worldbody></mujoco>"


@pytest.mark.nightly
def test_a_humanoid_of_40_dofs_loads_within_300_ms_in_mjcf():
    pytest.importorskip("mujoco")
    legs = [0, *range(1, 6), 0, *range(7, 12)]
    arms = [0, *range(13, 20), 13, *range(21, 27), *[20] * 6, *[27] * 5, 13, 0]
    measured(model([0]), "mujoco")
    bodies, seconds, _ = measured(model([*legs, *arms]), "mujoco")
    assert bodies == 40 and seconds < 0.3
