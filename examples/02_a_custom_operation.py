"""A differentiable operation of your own: forward and backward side by side, then the gradient check that holds it."""

import pellucid
from pellucid.base.errors import GradientError
from pellucid.tape import gradcheck


class Softplus(pellucid.Op):
    """y = ln(1 + e**x);  dx = dy sigmoid(x).   It computes through the kernels of the tensor's device alone."""

    saves = ("x",)

    def forward(self, x):
        k = self.kernels
        self.save(x=x)
        # ln(1 + e**x) = max(x, 0) + ln(1 + e**-|x|), which never overflows.
        tail = k.log(k.add(k.exp(k.neg(k.abs(x))), 1.0))
        return k.add(k.relu(x), tail)

    def backward(self, dy):
        return {"x": self.kernels.mul(dy, self.kernels.sigmoid(self.x))}


class Wrong(Softplus):
    """The same with a mistake in it."""

    def backward(self, dy):
        return {"x": self.kernels.mul(dy, self.kernels.tanh(self.x))}


x = pellucid.randn((3, 4), generator=pellucid.Generator(0), dtype="float64", requires_grad=True)
print("softplus:", Softplus.apply(x))

# The check compares backward with central differences, in float64, under a random cotangent.
print(f"largest difference: {gradcheck(Softplus.apply, [x]):.1e}")

try:
    gradcheck(Wrong.apply, [x])
except GradientError as error:
    print(f"the mistake is found: {error}")
