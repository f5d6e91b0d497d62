"""The paper's VGG in PyTorch, to hold our training step against; never a dependency."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: What to say where it is missing.
HOW_TO_GET = (
    "PyTorch is not installed, so there is nothing to compare with: pip install torch "
    "--index-url https://download.pytorch.org/whl/cpu, then --parts=vgg again"
)


def find() -> Any:
    """The module torch, None where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def network(torch: Any, channels: Sequence[int], dense: int, side: int, classes: int):
    """Layer for layer `rad_jax.learners.VGG`, for RGB images of `side` pixels."""
    nn = torch.nn
    layers: list[Any] = []
    before = 3
    for width in channels:
        for _ in range(2):
            layers += [
                nn.Conv2d(before, width, 3, padding=1),
                nn.BatchNorm2d(width, eps=1e-3, momentum=0.01),
                nn.ReLU(),
            ]
            before = width
        layers.append(nn.MaxPool2d(2))
    flat = before * (side // 2 ** len(channels)) ** 2
    layers += [
        nn.Flatten(),
        nn.Linear(flat, dense),
        nn.BatchNorm1d(dense, eps=1e-3, momentum=0.01),
        nn.ReLU(),
        nn.Linear(dense, classes),
    ]
    model = nn.Sequential(*layers)
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def training(
    torch: Any,
    model: Any,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    minibatch: int,
    steps: int,
    channels_last: bool,
    device: str,
) -> Callable[[], None]:
    """Makes a function that takes gradient steps as our VGG does.

    Args:
      torch: the module.
      model: as `network` returns it.
      images: ``[n, H, W, 3]`` float32.
      labels: ``[n]`` int.
      minibatch: rows of a minibatch, at most n.
      steps: of each call.
      channels_last: how activations lie in memory.
      device: "cpu" or "cuda".
    """
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(device, memory_format=layout).train()
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    x = x.to(device, memory_format=layout)
    y = torch.from_numpy(labels.astype(np.int64)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    hidden = next(layer for layer in model if isinstance(layer, torch.nn.Linear))
    taken = 0

    def run() -> None:
        nonlocal taken
        for _ in range(steps):
            rows = torch.randint(len(y), (minibatch,), device=device)
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (1.0 + 1e-4 * taken)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss = loss + 0.01 * hidden.weight.square().sum()
            loss.backward()
            optimizer.step()
            taken += 1
        if device != "cpu":
            torch.cuda.synchronize()

    return run
