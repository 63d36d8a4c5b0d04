"""Interpreter of scalar programs on batched tensors, the oracle of the code generators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.program.dense_block import DenseBlock
from torchsko.fused.program.program import Instr, Loop, Program
from torchsko.utils.shapes import broadcast_shapes

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "recip": torch.reciprocal,
    "div": torch.true_divide,
    "min": torch.minimum,
    "max": torch.maximum,
    "rare": torch.clone,
}


def evaluate(program: Program, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run a program on a batch with one tensor operation per instruction.

    Args:
        program: the program.
        inputs: for each port a tensor ``[*batch, *port.shape]``; the batch shapes broadcast.
            A shared port has no batch dimensions.

    Returns:
        For each output port a tensor ``[*batch, *port.shape]``.

    Raises:
        FusedError: the number of inputs or a trailing shape does not fit the ports.
    """
    scalars = _scalars(program, inputs)
    batch = broadcast_shapes(*(x.shape for x in scalars), ())
    results = [x.expand(batch) for x in _results(program, scalars, inputs[0])]
    outputs, start = [], 0
    for port in program.outputs:
        flat = results[start : start + port.size] or [inputs[0].new_zeros(*batch, 0)]
        outputs.append(torch.stack(flat, -1).reshape(batch + port.shape))
        start += port.size
    return tuple(outputs)


def _results(program: Program, scalars: list[Tensor], like: Tensor) -> list[Tensor]:
    """The output scalars, from those of the inputs."""
    values: list[Any] = []
    for instr in program.code:
        values.append(_apply(program, instr, scalars, values, like))
    return [values[k] for k in program.results]


def _repeated(loop: Loop, args: list[Tensor], like: Tensor) -> list[Tensor]:
    """The outputs of a loop, in the order of its parts."""
    if loop.program.block is not None:
        return _of_block(loop.program.block, args, like)
    if loop.writes:
        return _over_rows(loop, args, like)
    state, invariant = args[: loop.carry], args[loop.num_variable :]
    states, stacked = [state], []
    summed = [like.new_zeros(())] * loop.summed
    for k in reversed(range(loop.count)) if loop.reverse else range(loop.count):
        first = loop.carry + k * loop.stream
        streamed = args[first : first + loop.stream]
        found = _results(loop.program, [*state, *streamed, *invariant], like)
        state, entries = found[: loop.carry], found[loop.carry : loop.carry + loop.stacked]
        summed = [x + y for x, y in zip(summed, found[loop.carry + loop.stacked :], strict=True)]
        states.append(state)
        stacked.append(entries)
    direction = slice(None, None, -1 if loop.reverse else 1)
    return [x for row in (*states[direction], *stacked[direction], summed) for x in row]


def _over_rows(loop: Loop, args: list[Tensor], like: Tensor) -> list[Tensor]:
    """The outputs of a loop over rows."""
    arrays, first = [], 0
    for access in loop.reads:
        arrays.append(args[first : first + access.size])
        first += access.size
    totals = [[like.new_zeros(())] * access.size for access in loop.writes]
    for k in range(loop.count):
        inputs = []
        for access, array in zip(loop.reads, arrays, strict=True):
            for row in access.table[k * access.slots : (k + 1) * access.slots]:
                inputs += array[row * access.width : (row + 1) * access.width]
        found = iter(_results(loop.program, [*inputs, *args[first:]], like))
        for access, total in zip(loop.writes, totals, strict=True):
            for row in access.table[k * access.slots : (k + 1) * access.slots]:
                for j in range(row * access.width, (row + 1) * access.width):
                    total[j] = total[j] + next(found)
    return [x for total in totals for x in total]


def _scalars(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    if len(inputs) != len(program.inputs):
        raise FusedError(
            f"the program has {len(program.inputs)} inputs and got {len(inputs)}: "
            f"pass {[port.name for port in program.inputs]}"
        )
    scalars: list[Tensor] = []
    for port, x in zip(program.inputs, inputs, strict=True):
        num_batch = x.ndim - len(port.shape)
        is_batched = num_batch > 0 and port.shared
        if num_batch < 0 or is_batched or tuple(x.shape[num_batch:]) != port.shape:
            batch = "" if port.shared else "*batch, "
            raise FusedError(
                f"input {port.name!r} has shape {tuple(x.shape)}: "
                f"pass [{batch}{', '.join(map(str, port.shape))}]"
            )
        scalars.extend(x.reshape(*x.shape[:num_batch], port.size).unbind(-1))
    return scalars


def _apply(
    program: Program, instr: Instr, scalars: list[Tensor], values: list[Any], like: Tensor
) -> Any:
    op, args = instr
    if op == "const":
        return like.new_tensor(program.constants[args[0]])
    if op == "input":
        return scalars[args[0]]
    if op == "loop":
        return _repeated(program.loops[args[0]], [values[k] for k in args[1:]], like)
    if op == "part":
        return values[args[0]][args[1]]
    operands = [values[k] for k in args]
    if op == "where":
        return torch.where(operands[0] != 0, operands[1], operands[2])
    function = _FUNCTIONS.get(op) or getattr(torch, op)
    return function(*operands).to(like.dtype)


def _of_block(block: DenseBlock, args: list[Tensor], like: Tensor) -> list[Tensor]:
    """The results of a dense operation, from its variable and its fixed matrix."""
    variable = block.sizes[0]
    batch = broadcast_shapes(*(x.shape for x in args))
    entries = torch.stack([x.expand(batch) for x in args], -1)
    first, second = entries[..., :variable], entries[..., variable:]
    n, k, c = block.rows, block.inner, block.columns
    if block.kind == "product":
        found = second.reshape(*batch, n, k) @ first.reshape(*batch, k, c)
    elif block.kind == "adjoint_product":
        found = second.reshape(*batch, k, n).mT @ first.reshape(*batch, k, c)
    elif block.kind in ("forward", "backward"):
        L = _lower(second, n)
        L, upper = (L.mT, True) if block.kind == "backward" else (L, False)
        B = first.reshape(*batch, n, c)
        found = torch.linalg.solve_triangular(L, B, upper=upper, unitriangular=block.unit)
    elif block.kind.startswith("reorder"):
        order = second.long() if block.kind == "reorder" else second.argsort(-1)
        found = first.reshape(*batch, n, c).gather(-2, order[..., None].expand(*batch, n, c))
    elif block.kind == "lu":
        LU, pivots = torch.linalg.lu_factor(first.reshape(*batch, n, n))
        order = torch.lu_unpack(LU, pivots)[0].argmax(-2).to(like.dtype)
        found = torch.cat([LU.flatten(-2), order], -1)
    elif block.kind == "store":
        found = first
    elif block.kind == "symmetric":
        L = _lower(second, n)
        found = (L + L.tril(-1).mT) @ first[..., None]
    elif block.kind == "gram":
        A = _sparse(block, second)
        found = A.mT @ (first[..., None] * A) + block.shift * torch.eye(n, dtype=like.dtype)
        found = _packed(found) + (second[..., block.num_entries :] if block.adds else 0.0)
    elif block.kind in ("sparse", "sparse_adjoint"):
        A = _sparse(block, second)
        found = (A if block.kind == "sparse" else A.mT) @ first[..., None]
    elif block.kind == "sparse_forward":
        B = _sparse(block, first).mT
        L = _lower(second, n)
        found = torch.linalg.solve_triangular(L, B, upper=False, unitriangular=block.unit)
    elif block.kind == "qr":
        found = _reflections(first.reshape(*batch, n, k))
    elif block.kind in ("fit", "lift"):
        factors, factor = second.split([n * k, k], -1)
        Q = torch.linalg.householder_product(factors.reshape(*batch, n, k), factor)
        R = factors.reshape(*batch, n, k)[..., :k, :].triu()
        if block.kind == "fit":
            found = torch.linalg.solve(R, Q.mT @ first.reshape(*batch, n, c))
        else:
            found = Q @ torch.linalg.solve(R.mT, first.reshape(*batch, k, c))
    elif block.kind == "cholesky":
        A = _lower(first, n)
        found = _packed(torch.linalg.cholesky(A + A.tril(-1).mT))
    else:
        found = _packed(_ldl(_lower(first, n), block.least))
    return [*found.reshape(*batch, -1).unbind(-1)]


def _reflections(A: Tensor) -> Tensor:
    """LAPACK's geqrf, with a reflection in the last row, too."""
    A, factors = A.clone(), []
    for k in range(A.shape[-1]):
        x = A[..., k:, k].clone()
        end = -torch.where(x[..., 0] > 0, 1.0, -1.0) * x.norm(dim=-1)
        first = x[..., 0] - end
        v = torch.cat([torch.ones_like(first)[..., None], x[..., 1:] / first[..., None]], -1)
        factors.append(-first / end)
        rest = A[..., k:, k:]
        rest -= factors[-1][..., None, None] * v[..., None] * (v[..., None, :] @ rest)
        A[..., k + 1 :, k] = v[..., 1:]
    return torch.cat([A.flatten(-2), torch.stack(factors, -1)], -1)


def _sparse(block: DenseBlock, entries: Tensor) -> Tensor:
    """The sparse matrix of an operation."""
    matrix, first = entries.new_zeros(*entries.shape[:-1], block.inner, block.rows), 0
    for columns, rows in block.groups:
        size = len(rows) * len(columns)
        of_group = entries[..., first : first + size].unflatten(-1, (len(rows), len(columns)))
        matrix[..., torch.tensor(rows)[:, None], torch.tensor(columns)] = of_group
        first += size
    return matrix


def _lower(packed: Tensor, n: int) -> Tensor:
    rows, columns = torch.tril_indices(n, n)
    matrix = packed.new_zeros(*packed.shape[:-1], n, n)
    matrix[..., rows, columns] = packed
    return matrix


def _packed(matrix: Tensor) -> Tensor:
    rows, columns = torch.tril_indices(matrix.shape[-1], matrix.shape[-1])
    return matrix[..., rows, columns]


def _ldl(A: Tensor, least: float) -> Tensor:
    """L below the diagonal and D on it, column by column."""
    rest, size = A + A.tril(-1).mT, A.diagonal(0, -2, -1)
    out = torch.zeros_like(A)
    for k in range(A.shape[-1]):
        pivot = rest[..., k, k]
        if least >= 0:
            pivot = torch.where(pivot > least * size[..., k], pivot, size[..., k])
        column = rest[..., k + 1 :, k] / pivot[..., None]
        out[..., k, k], out[..., k + 1 :, k] = pivot, column
        rest = rest.clone()
        rest[..., k + 1 :, k + 1 :] -= (
            column[..., :, None] * column[..., None, :] * pivot[..., None, None]
        )
    return out
