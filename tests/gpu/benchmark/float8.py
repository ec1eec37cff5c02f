# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose forward product is made in 8-bit floating point, as in torchtitan; the backward pass is in bfloat16."""


def replace_linear(torch, model):
    """Replaces each linear layer inside the model's layers, but not the output layer, by one that scales whole tensors."""
    largest = torch.finfo(torch.float8_e4m3fn).max

    def quantized(values):
        scale = values.detach().abs().amax().float().clamp(min=1e-12) / largest
        return (values / scale).to(torch.float8_e4m3fn), scale

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, rows, weight):
            context.save_for_backward(rows, weight)
            (left, left_scale), (right, right_scale) = quantized(rows), quantized(weight)
            return torch._scaled_mm(left, right.t(), left_scale, right_scale, out_dtype=torch.bfloat16)

        @staticmethod
        def backward(context, gradient):
            rows, weight = context.saved_tensors
            return gradient @ weight, gradient.t() @ rows

    class Float8Linear(torch.nn.Linear):
        def forward(self, values):
            rows = Product.apply(values.flatten(0, -2), self.weight)
            return rows.unflatten(0, values.shape[:-1])

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module.bias is None and "lm_head" not in name:
            module.__class__ = Float8Linear
