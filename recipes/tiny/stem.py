"""The first convolution in coordinates that suit log-mel frames."""

from __future__ import annotations

from torch import Tensor, nn


class CentredConvolution(nn.Module):
    """The stem's first convolution with its bias counted from the mean of log-mel frames.

    Log-mels are far from zero (mean -12, spread 4), which makes for slow learning. The function is that of
    the plain convolution whose weights `plain` returns, so nothing remains of this in the trained model.
    """

    MEAN, SPREAD = -12.0, 4.0

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        assert convolution.bias is not None
        self.stride = convolution.stride
        self.weight, self.bias = nn.Parameter(convolution.weight.data), nn.Parameter(convolution.bias.data)

    def plain(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias of the equal plain convolution."""
        weight = weight / self.SPREAD
        return weight, bias - self.MEAN * weight.sum(dim=(1, 2, 3))

    def centred(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `plain`."""
        return weight * self.SPREAD, bias + self.MEAN * weight.sum(dim=(1, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """[B, 1, T, F] -> [B, C, T', F']."""
        return nn.functional.conv2d(x, *self.plain(self.weight, self.bias), stride=self.stride)
