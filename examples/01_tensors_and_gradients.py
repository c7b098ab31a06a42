"""Tensors behave like NumPy arrays that remember how they were made; `backward` follows that memory to the inputs."""

import numpy as np

import pellucid
from pellucid.tape import describe, tape

# A tensor is made from numbers, lists or arrays; `requires_grad` makes it a leaf whose gradient is wanted.
x = pellucid.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
w = pellucid.tensor([0.5, -1.0, 2.0], requires_grad=True)

# Broadcasting, reductions, indexing and matrix products are what you expect.
y = (x * w).sum(-1)
loss = (y**2).mean()
print("y   ", y)
print("loss", loss)

# The tape of a result: the operations it depends on, in order, and what each keeps for its backward.
print(describe(tape(loss)))

# One call fills `grad` of every leaf: d loss / d y = 2 y / n, and so on down the tape.
loss.backward()
print("dx  ", x.grad)
print("dw  ", w.grad)

expected = 2 * y.detach().numpy() / 2 @ x.detach().numpy()
assert w.grad is not None
assert np.allclose(w.grad.numpy(), expected)

# Views share memory; nothing is recorded inside `no_grad`.
with pellucid.no_grad():
    column = x[:, 1]
    assert not column.requires_grad
print("column", column.tolist(), "strides", column.strides)
