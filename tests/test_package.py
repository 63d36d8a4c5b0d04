"""The package as imported: version, public names, and the cost of an import and a load."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import torchsko as ts

ROOT = Path(__file__).parents[1]


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert ts.__version__ == project["version"]


def test_no_text_advises_to_install_from_an_index_that_does_not_have_it():
    files = [ROOT / "README.md", *ROOT.glob("torchsko/**/*.py"), *ROOT.glob("examples/*.py")]
    for file in files:
        text = file.read_text("utf-8")
        assert "pip install torchsko" not in text and 'pip install "torchsko' not in text, file


@pytest.fixture(scope="module")
def first_imports():
    """Modules that `import torchsko` imports, and those that a load then imports."""
    return imported("import torchsko as ts", "ts.load(ts.robots.panda)")


def test_import_and_load_import_no_optional_package(first_imports):
    """sympy alone takes longer than a robot of 40 dofs."""
    new = {name.split(".")[0] for each in first_imports for name in each}
    assert new & {"sympy", "mpmath", "scipy", "matplotlib", "mujoco", "tqdm"} == set()


FIRST = """
import torchsko as ts
mech = ts.load(ts.robots.panda)
q, qd = mech.random_state()
ts.torque_regressor(mech, q, qd, qd)
ts.rollout(mech, ts.State(q, qd), qd, steps=3, f_ext=q.new_zeros(3, mech.num_bodies, 6))
q.requires_grad_()
ts.fuse(mech).forward_dynamics(q, qd, qd).sum().backward()
"""


def test_a_rollout_and_a_cached_kernel_import_no_optional_package():
    exec(FIRST, {})  # tracing may
    (modules,) = imported(FIRST)
    assert {"sympy", "scipy", "matplotlib", "mujoco"} & set(modules) == set()


GRADIENT = """
import torchsko as ts
mech = ts.load(ts.robots.panda)
q, qd = mech.random_state()
push = lambda mech, q, qd: ts.forward_dynamics(mech, q, qd, 0 * qd)
ts.fuse(push, mech)(q.requires_grad_(), qd).sum().backward()
"""


def test_a_traced_gradient_imports_neither_sympy_nor_dynamo():
    """They take two seconds of processor time."""
    (modules,) = imported(GRADIENT)
    assert "torchsko.fused.tracing.tracer" in modules
    assert {"sympy", "torch._dynamo"} & set(modules) == set()


SHUT = (
    *(
        "torchsko.envs",
        "torchsko.fused",
        "torchsko.learn",
        "torchsko.api.verb_table",
        "torchsko.view",
        "torchsko.version",
    ),
    *("torchsko.io", "torchsko.io.builder", "torchsko.io.loading", "torchsko.mechanism.construct"),
    *("torchsko.mechanism.edits.lock", "torchsko.mechanism.edits.append"),
    *("torchsko.mechanism.joints.registry", "torchsko.algebra.theory.partition"),
)
"""Rooms that `import torchsko` leaves shut: each costs milliseconds, and many programs need none."""


def imported(*programs):
    """Modules that each of several programs imports, after torch, one after the other in a new process."""
    text = "import sys, torch\n"
    for program in programs:
        text += f"before = set(sys.modules)\n{program}\nprint(*sorted(set(sys.modules) - before))\n"
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return [line.split() for line in run.stdout.splitlines()]


def test_an_import_loads_no_package_of_files_or_kernels(first_imports):
    opened = first_imports[0]
    assert "torchsko.integrators.rollout" in opened and "torchsko.verbs.dynamics" in opened
    dispatcher = {"torchsko.fused", "torchsko.fused.automatic"}  # decides when kernels are built
    assert [x for x in opened if x.startswith(SHUT) and x not in dispatcher] == []
    assert {"tomllib", "xml", "importlib.metadata", "torch._dynamo"} & set(opened) == set()


ROOMS = ("", "actuators", "algebra", "constraints", "contact", "fused", "integrators", "verbs")
"""Packages with a stub that lists their public names; "" is torchsko itself."""


def public_names(room=""):
    """Module and name of each import in a stub, and in the table of verbs that the first one imports."""
    paths, names = ["/".join((*([room] if room else []), "__init__.pyi"))], {}
    for path in paths:
        for node in ast.parse((ROOT / "torchsko" / path).read_text("utf-8")).body:
            for alias in getattr(node, "names", ()):
                if alias.name == "*":
                    paths.append(node.module.partition(".")[2].replace(".", "/") + ".py")
                elif not (alias.asname or "_").startswith("_"):
                    names[alias.name] = node.module
    assert names and len(paths) == (1 if room else 2)
    return [(module, name) for name, module in names.items()]


@pytest.mark.some(5)
@pytest.mark.parametrize("room", ROOMS)
def test_public_names_are_available_on_first_use(room):
    package = f"torchsko.{room}".rstrip(".")
    first_use = f"import torchsko, sys\nroom = {package}\n"
    for module, name in public_names(room):
        first_use += f"assert {name!r} in dir(room), {name!r}\nfound = room.{name}\n"
        first_use += f"from {module} import {name} as same\nassert found is same, {name!r}\n"
        first_use += f"assert vars(room)[{name!r}] is found, {name!r}\n"
    imported(first_use)


def test_public_names_are_in_help_and_completion():
    """Inner packages become attributes of the package when they are imported, and are no public names."""
    imported(
        "import pydoc, torchsko as ts, torchsko.io.urdf.read_urdf, torchsko.bridge.assemble\n"
        "public = {x for x in dir(ts) if not x.startswith('_')}\n"
        "inner = {'io', 'bridge', 'sensing', 'table', 'Any', 'import_module', 'TYPE_CHECKING'}\n"
        "assert not public & inner, public & inner\n"
        "assert {'load', 'mass_matrix', 'Mechanism', 'control', 'learn', 'robots'} <= public\n"
        "page = pydoc.plain(pydoc.render_doc(ts))\n"
        "missing = [x for x in public if x not in page]\n"
        "assert not missing, missing\n"
        "assert 'forward_dynamics(mech' in page\n"
        "space = {}\nexec('from torchsko import *', space)\n"
        "assert public <= set(space), public - set(space)"
    )


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_are_those_of_the_stub(room):
    package = getattr(ts, room) if room else ts
    names = {name for _, name in public_names(room)}
    assert set(package.__all__) == names
    assert set(dir(package)) - {x for x in dir(package) if x.startswith("__")} == names


def test_no_name_is_public_in_two_places():
    names = [name for room in ROOMS for _, name in public_names(room)]
    assert len(names) == len(set(names))


def test_the_stub_is_installed_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert {"py.typed", "__init__.pyi", "*/__init__.pyi"} <= set(
        project["tool"]["setuptools"]["package-data"]["torchsko"]
    )


def test_a_missing_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'torchsko' has no attribute 'fly'"):
        _ = ts.fly
    with pytest.raises(AttributeError, match=r"Did you mean 'actuators\.Tendons'"):
        _ = ts.Tendons
    with pytest.raises(AttributeError, match="Did you mean 'mass_matrix'"):
        _ = ts.mass_matrx


def shown():
    """What a user's session shows by its last line, of a robot of 60 joints in a batch."""
    builder = ts.MechanismBuilder("snake")
    for k in range(60):
        builder.link(f"ring{k}", mass=1.0, com=(0.1, 0.0, 0.0))
        parent = f"ring{k - 1}" if k else None
        builder.joint(f"bend{k}", "revolute", child=f"ring{k}", parent=parent)
    builder.couple("bend59", {"bend58": 1.0})
    mech = builder.build()
    q, qd = mech.random_state(3)
    drives = [ts.actuators.Actuator(f"motor{k}", {f"bend{k}": 1.0}) for k in range(58)]
    strings = [ts.actuators.Tendon(f"string{k}", {f"bend{k}": 1.0}) for k in range(58)]

    def weight(mech, q):
        return ts.gravity_force(mech, q)

    return {
        "builder": builder,
        "mechanism": mech,
        "joints": mech.joints,
        "coupling": mech.coupling,
        "kept": mech.file_metadata,
        "geometry": mech.geometry,
        "model": ts.assemble(mech, q, qd),
        "innovations": ts.innovations(ts.assemble(mech, q, qd)),
        "conventions": ts.conventions("mujoco", mech),
        "actuators": ts.actuators.Actuators.of(mech, drives),
        "tendons": ts.actuators.Tendons.of(mech, strings),
        "fused": ts.fuse(ts.load(ts.robots.panda), inputs=("mass",)),
        "call": ts.fuse(weight, ts.load(ts.robots.panda)),
        "scene": ts.view.scene_of(mech),
    }


def test_what_a_session_shows_by_its_last_line_is_a_line_with_names():
    for what, value in shown().items():
        told = repr(value)
        assert "\n" not in told and len(told) < 300, (what, told[:200])
        assert type(value).__name__ in told and " object at 0x" not in told, told


def test_an_unknown_name_is_answered_with_the_most_similar_ones():
    with pytest.raises(
        AttributeError, match=r"'inverse_dynamic'\. Did you mean 'inverse_dynamics'"
    ):
        ts.inverse_dynamic  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'\.$"):
        ts.xyzzy  # noqa: B018
