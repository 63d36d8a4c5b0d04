"""Small URDF texts, whole and broken."""

ENTRIES = {"ixx": "1", "ixy": "0", "ixz": "0", "iyy": "2", "iyz": "0", "izz": "2.5"}
INERTIA = "<inertia " + " ".join(f'{k}="{v}"' for k, v in ENTRIES.items()) + "/>"
LINK = f'<link name="b"><inertial><mass value="2"/>{INERTIA}</inertial></link>'
ENDS = '<parent link="a"/><child link="b"/>'


def robot(joint: str = "", link: str = LINK, more: str = "") -> str:
    return f'<robot name="r"><link name="a"/>{link}{joint}{more}</robot>'


def joint(inside: str = "", kind: str = "revolute", name: str = "j") -> str:
    return f'<joint name="{name}" type="{kind}">{ENDS}{inside}</joint>'


def inertia(**changes: str | None) -> str:
    """The link with some entries of its inertia changed; None leaves one out."""
    entries = (f'{k}="{v}"' for k, v in (ENTRIES | changes).items() if v is not None)
    return LINK.replace(INERTIA, f"<inertia {' '.join(entries)}/>")


POISON = ["<", ">", '"', "/", "&x;", "&#0;", "nan", "1e999", "-1", "0 0 0", "]]>", "<!DOCTYPE r>", "xacro:",
          "${x}", "<link/>", "<joint/>", "1e300", "1e-300", "\x00", "\ud800", "é", "fixed"]  # fmt: skip
"""What breaks readers."""
