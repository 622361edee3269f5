"""Trains the network of `examples/digits` in Python: the same data, weights and steps, so the same
losses.

python crates/disco-python/examples/digits.py --workers 4
"""

import argparse
import csv
import gzip
import json
import os

import disco
import numpy as np

DATA = os.path.join(os.path.dirname(__file__), "../../../examples/data/digits.csv.gz")
BATCH, HIDDEN, RATE, MOMENTUM = 64, 32, np.float32(0.1), np.float32(0.8)


def random_numbers(seed):
    """SplitMix64, as the Rust program uses it."""
    mask = 2**64 - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def permutation(count, numbers):
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = next(numbers) % (last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def initial(numbers):
    """Weights and a bias for each layer."""
    layers = []
    for inputs, outputs in ((64, HIDDEN), (HIDDEN, 10)):
        limit = np.sqrt(np.float32(6) / np.float32(inputs))
        units = [
            np.float32(next(numbers) >> 40) / np.float32(1 << 24) for _ in range(inputs * outputs)
        ]
        layers.append(
            np.array([-limit + (limit + limit) * unit for unit in units], "f4").reshape(
                inputs, outputs
            )
        )
        layers.append(np.zeros(outputs, "f4"))
    return layers


def forward(layers, pixels):
    w1, b1, w2, b2 = layers
    hidden = np.maximum(pixels @ w1 + b1, 0)
    return hidden, hidden @ w2 + b2


@disco.function
def step(ctx, layers, pixels, labels, batch):
    """One step on this worker's rows of a batch, whose gradients are averaged over all workers;
    returns the loss.
    """
    velocity = ctx.state.setdefault("velocity", [np.zeros_like(layer) for layer in layers])
    pixels, labels = pixels[batch], labels[batch]
    hidden, scores = forward(layers, pixels)
    error = np.exp(scores - scores.max(1, keepdims=True))
    error /= error.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(error[rows, labels]).mean()
    error[rows, labels] -= 1
    error /= len(labels)
    back = (error @ layers[2].T) * (hidden > 0)
    gradients = [pixels.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
    # One all-reduce for all of them, and the loss.
    flat = np.concatenate([*(gradient.ravel() for gradient in gradients), [loss]]).astype("f4")
    flat = ctx.all_reduce(flat, "avg", out=flat)
    start = 0
    for layer, speed in zip(layers, velocity, strict=True):
        speed *= MOMENTUM
        speed += flat[start : start + layer.size].reshape(layer.shape)
        layer -= RATE * speed
        start += layer.size
    return float(flat[-1])


@disco.function
def correct(ctx, layers, pixels, labels):
    """The number of images that this worker's part of the network recognises, of all workers."""
    mine = slice(ctx.worker, None, ctx.world)
    return ctx.all_reduce(int((forward(layers, pixels[mine])[1].argmax(1) == labels[mine]).sum()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--backend", default="local")
    parser.add_argument("--json", action="store_true", help="print the losses as JSON")
    args = parser.parse_args()
    disco.init()
    with gzip.open(DATA, "rt") as file:
        rows = np.array([[int(cell) for cell in row] for row in csv.reader(file)], "f4")
    order = np.array(permutation(len(rows), random_numbers(0)))
    test, train = rows[order[: len(rows) // 5]], rows[order[len(rows) // 5 :]]
    batches = len(train) // BATCH
    # Worker i has rows i·k to (i + 1)·k of each batch of 64 rows.
    parts = train[: batches * BATCH].reshape(batches, args.workers, -1, 65)
    with disco.session(processes=args.workers, backend=args.backend) as s:
        pixels = s.put_each(
            [
                np.ascontiguousarray(parts[:, i, :, :64]) / np.float32(16)
                for i in range(args.workers)
            ]
        )
        labels = s.put_each([parts[:, i, :, 64].astype(int) for i in range(args.workers)])
        held_out = s.put(test[:, :64] / np.float32(16)), s.put(test[:, 64].astype(int))
        layers = s.put(initial(random_numbers(0)))
        losses = []
        for epoch in range(args.epochs):
            # The calls return at once; the workers go on while this program does.
            steps = [step(s, layers, pixels, labels, batch) for batch in range(batches)]
            losses += [loss.get() for loss in steps]
            accuracy = correct(s, layers, *held_out).get() / len(test)
            if not args.json:
                loss = np.mean(losses[-batches:])
                print(f"epoch {epoch + 1:3}  loss {loss:.4f}  test accuracy {accuracy:.4f}")
    if args.json:
        print(json.dumps({"losses": losses, "test_accuracy": accuracy}))


if __name__ == "__main__":
    main()
