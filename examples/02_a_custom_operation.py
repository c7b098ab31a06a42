"""A differentiable operation of your own: forward and backward side by side, then the gradient check that holds it."""

import pellucid
from pellucid.base.errors import GradientError
from pellucid.tape import gradcheck


class Bell(pellucid.Op):
    """y = e**(-x**2);  dx = -2 x y dy.   It computes through the kernels of the tensor's device alone."""

    saves = ("x", "y")

    def forward(self, x):
        k = self.kernels
        y = k.exp(k.neg(k.mul(x, x)))
        self.save(x=x, y=y)
        return y

    def backward(self, dy):
        k = self.kernels
        return {"x": k.neg(k.mul(k.mul(k.add(self.x, self.x), self.y), dy))}


class Wrong(Bell):
    """The same with a mistake in it: the 2 is missing."""

    def backward(self, dy):
        k = self.kernels
        return {"x": k.neg(k.mul(k.mul(self.x, self.y), dy))}


x = pellucid.randn((3, 4), generator=pellucid.Generator(0), dtype="float64", requires_grad=True)
print("bell:", Bell.apply(x))

# The check compares backward with central differences, in float64, under a random cotangent.
print(f"largest difference: {gradcheck(Bell.apply, [x]):.1e}")

try:
    gradcheck(Wrong.apply, [x])
except GradientError as error:
    print(f"the mistake is found: {error}")
