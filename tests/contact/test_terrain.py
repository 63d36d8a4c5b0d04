"""Contact with a smooth height field equals that with a plane, interpolates heights, and has gradients."""

import pytest
import torch

import torchsko as ts

pytest.importorskip("mujoco")

BODIES = {
    "sphere": '<geom name="b" size=".2" mass="1"/>',
    "capsule": '<geom name="b" type="capsule" size=".1 .3" mass="1"/>',
    "box": '<geom name="b" type="box" size=".1 .2 .3" mass="1"/>',
    "mesh": '<geom name="b" type="mesh" mesh="m" mass="1"/>',
}


def load(ground, body):
    return ts.load(
        f"""<mujoco><option cone="elliptic"/><asset>
        <mesh name="m" vertex="-.1 -.1 0  .1 -.1 0  .1 .1 0  -.1 .1 0  0 0 .2"/>
        <hfield name="h" nrow="8" ncol="9" size="2 1.5 1 1" 
          elevation="{" ".join(["1", "0"] * 36)}"/></asset>
        <worldbody><geom name="ground" {ground}/><body><freejoint/>{BODIES[body]}</body></worldbody>
        </mujoco>"""
    )


def sloped(contact, slopes=(0.2, -0.1), offset=0.05):
    """The contact model of a height field with the heights of an inclined plane."""
    x, y = (torch.linspace(-a, a, k, dtype=torch.float64) for a, k in ((2, 9), (1.5, 8)))
    heights = offset + slopes[0] * x + slopes[1] * y[:, None]
    return contact.replace(heights=heights[None])


@pytest.mark.parametrize("body", ["sphere", "capsule", "box"])
def test_an_inclined_height_field_acts_as_an_inclined_plane(body):
    field, flat = load('type="hfield" hfield="h"', body), load('type="plane" size="1 1 1"', body)
    n = torch.tensor([-0.2, 0.1, 1.0], dtype=torch.float64)
    n = n / n.norm()
    y = torch.linalg.cross(n, torch.eye(3, dtype=n.dtype)[0])
    y = y / y.norm()
    rotation = torch.stack([torch.linalg.cross(y, n), y, n], -1)
    plane = ts.ContactModel.of(flat)
    at = (plane.shape_names.index("ground"),)
    rotations, places = plane.shape_rotation.clone(), plane.shape_position.clone()
    rotations[at], places[at] = rotation, torch.tensor([0, 0, 0.05], dtype=n.dtype)
    plane = plane.replace(shape_rotation=rotations, shape_position=places)
    contact = sloped(ts.ContactModel.of(field))
    generator = torch.Generator().manual_seed(0)
    q, v = (torch.randn(20, k, dtype=n.dtype, generator=generator) for k in (7, 6))
    q = torch.cat([0.2 * q[:, :3], torch.nn.functional.normalize(q[:, 3:], dim=-1)], -1)
    one = ts.contact.contact_dynamics(field, q, v, 0 * v, contact=contact).qdd
    two = ts.contact.contact_dynamics(flat, q, v, 0 * v, contact=plane).qdd
    assert (ts.contacts(field, q, contact=contact).active.sum(-1) > 0).sum() > 5
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_the_surface_passes_through_the_heights_with_a_continuous_slope():
    mech = load('type="hfield" hfield="h"', "mesh")
    contact = ts.ContactModel.of(mech)
    generator = torch.Generator().manual_seed(0)
    heights = torch.rand(1, 8, 9, dtype=torch.float64, generator=generator)
    contact = contact.replace(
        heights=heights,
        mesh_vertices=0 * contact.mesh_vertices,
        shape_position=0 * contact.shape_position,
    )
    step = torch.tensor([4 / 8, 3 / 7, 0], dtype=torch.float64)
    for row in (1, 4, 6):
        for column in (1, 3, 7):
            node = torch.tensor([column, row, 0]) * step - torch.tensor([2, 1.5, 0])
            node = node + heights[0, row, column] * torch.eye(3, dtype=node.dtype)[2]
            shift = 1e-9 * torch.tensor([[0, 0, 0], [1, 1, 0], [-1, -1, 0]])
            q = torch.cat([node + shift, mech.neutral()[3:].expand(3, 4)], -1)
            found = ts.contacts(mech, q, contact=contact)
            assert abs(float(found.distance[0, 0])) < 1e-12
            normals = found.axes[:, 0, 0]
            torch.testing.assert_close(normals[1], normals[2], rtol=0, atol=1e-7)


def test_a_body_beyond_the_height_field_falls():
    mech = load('type="hfield" hfield="h"', "sphere")
    q = mech.file_metadata.initial.clone()
    q[0] = 2.1
    assert not ts.contacts(mech, q).active.any()


def test_accelerations_have_exact_derivatives_with_respect_to_heights():
    mech = load('type="hfield" hfield="h"', "capsule")
    contact = sloped(ts.ContactModel.of(mech))
    q = mech.neutral() + torch.eye(7, dtype=torch.float64)[2] * 0.3
    v = torch.tensor([0.1, -0.2, 0.3, 1.0, 0.5, -0.5], dtype=torch.float64)

    def accelerate(heights):
        changed = contact.replace(heights=heights)
        return ts.contact.contact_dynamics(mech, q, v, 0 * v, contact=changed).qdd

    assert ts.contacts(mech, q, contact=contact).active.any()
    heights = contact.heights.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        accelerate, heights, eps=1e-7, rtol=1e-6, atol=1e-6, fast_mode=True, check_forward_ad=True
    )
