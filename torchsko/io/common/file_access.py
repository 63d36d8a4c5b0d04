"""Files near a robot file that it may use although they lie outside its folder.

A robot file is untrusted: it can use its own folder and folders that the user trusts. Robots are often stored
as ``robots/arm.xml`` and ``meshes/link.stl``, so it can also use a file outside if all of the following hold:

- the path is relative, and leads at most `MAX_FOLDERS_UP` folders up from the robot file;
- the file is a mesh, texture, height field, skin or robot file by its extension (`EXTENSIONS`);
- it is a regular file of at most `MAX_FILE_BYTES`;
- no symbolic link leads out of the folder that the path names.
"""

from __future__ import annotations

import os

MAX_FOLDERS_UP = 3
"""Largest number of folders between a robot file and the folder of a file that it uses."""

MAX_FILE_BYTES = 256 * 2**20
"""Largest size of a file outside the folder of the robot file, and of meshes."""

EXTENSIONS = (
    ".stl", ".obj", ".msh", ".dae", ".ply", ".off", ".skn",
    ".png", ".jpg", ".jpeg", ".ktx", ".hf",
    ".xml", ".mjcf", ".urdf",
)  # fmt: skip
"""Extensions of meshes and skins, of textures and height fields, and of robot files."""


def is_near(path: str, home: str, *, is_folder: bool = False) -> bool:
    """True if a robot file may use a path that leads up from its folder.

    Args:
        path: the path with the folder of the robot file; the path written in the file is relative.
        home: folder of the robot file.
        is_folder: True for a folder in which files are searched; each of them is checked as well.

    Returns:
        True for a file that does not exist but would be permitted.
    """
    home = os.path.abspath(home)
    parts = os.path.relpath(os.path.abspath(path), home).split(os.sep)
    up = parts.count(os.pardir)
    if not 0 < up <= MAX_FOLDERS_UP:
        return False
    real = os.path.realpath(path)
    # If the folder is a symbolic link, programs go up from the link or from its target.
    tops = (os.path.join(home, *parts[:up]), os.path.normpath(os.path.join(home, *parts[:up])))
    named = [os.path.join(os.path.realpath(top), *parts[up:]) for top in tops]
    if is_folder:
        return real in named and (os.path.isdir(real) or not os.path.exists(real))
    if not any(real.startswith(os.path.join(os.path.dirname(x), "")) for x in named):
        return False
    if os.path.splitext(real)[1].lower() not in EXTENSIONS:
        return False
    return not os.path.exists(real) or (
        os.path.isfile(real) and os.path.getsize(real) <= MAX_FILE_BYTES
    )
