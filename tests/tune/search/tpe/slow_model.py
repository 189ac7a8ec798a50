"""The model once more, kernel by kernel and in plain Python; the real one must make the same suggestions.

It shares only the coordinates, the order of the trials and the order in which random numbers are drawn.
"""

from __future__ import annotations

import math

import numpy as np

from muster.tune.search.tpe.coordinates import Point
from muster.tune.search.tpe.table import GONE


def phi(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


class Kernels:
    """One density of a group: centers, widths and options by kernel, weights with the prior's last."""

    def __init__(self, coordinates, group, points, weights):
        self.points = [([p.u[i] for i in group.numbers], [p.c[i] for i in group.choices]) for p in points]
        self.sizes = [int(coordinates.sizes[i]) for i in group.choices]
        total = sum(weights) + 1
        self.weights = [weight / total for weight in weights]
        self.prior = 1 / total
        self.raw = list(weights)
        bins = [coordinates.scales[i].bin for i in group.numbers]
        columns = list(zip(*(u for u, _ in self.points), strict=True)) or [()] * len(group.numbers)
        self.widths = [widths(list(column), one) for column, one in zip(columns, bins, strict=True)]

    def density(self, u, c):
        found = self.prior * math.prod(1 / size for size in self.sizes)
        for place, (weight, (centers, options)) in enumerate(zip(self.weights, self.points, strict=True)):
            value = weight
            for dimension, (x, mu) in enumerate(zip(u, centers, strict=True)):
                s = self.widths[dimension][place]
                mass = phi((1 - mu) / s) - phi(-mu / s)
                value *= math.exp(-(((x - mu) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi) * mass)
            for own, option, size in zip(options, c, self.sizes, strict=True):
                value *= 1 - 0.4 * (size - 1) / size if own == option else 0.4 / size
            found += value
        return found


def widths(column, bin_width):
    count = len(column)
    if count == 1:
        return [max(column[0], 1 - column[0])]
    order = sorted(range(count), key=column.__getitem__)
    found = [0.0] * count
    for at, place in enumerate(order):
        gaps = []
        if at:
            gaps.append(column[place] - column[order[at - 1]])
        if at < count - 1:
            gaps.append(column[order[at + 1]] - column[place])
        found[place] = min(max(*gaps, 1 / min(100, count + 2), bin_width), 1.0)
    return found


def draw(kernels, rng, count, numbers, choices):
    """Draw candidates one coordinate at a time, from random numbers taken in the model's order."""
    edges = np.cumsum(kernels.raw)
    total = (edges[-1] if len(edges) else 0.0) + 1.0
    picks = [int(np.searchsorted(edges, x * total, side="right")) for x in rng.random(count)]
    u, c = rng.random((numbers, count)), rng.random((choices, count))
    copies = rng.random((choices, count))
    options = [[int(c[i, j] * kernels.sizes[i]) for j in range(count)] for i in range(choices)]
    if not len(edges):
        return u, np.array(options, dtype=np.int32).reshape(choices, count)
    for i in range(choices):
        for j, pick in enumerate(picks):
            if pick < len(edges) and copies[i, j] >= 0.4:
                options[i][j] = kernels.points[pick][1][i]
    found = draw_numbers(kernels, rng, [pick if pick < len(edges) else 0 for pick in picks], numbers)
    for j, pick in enumerate(picks):
        if pick == len(edges):
            found[:, j] = u[:, j]
    return found, np.array(options, dtype=np.int32).reshape(choices, count)


def draw_numbers(kernels, rng, kept, numbers):
    count = len(kept)
    normal = rng.standard_normal((numbers, count))
    found = np.empty((numbers, count))
    for i in range(numbers):
        for j, pick in enumerate(kept):
            found[i, j] = kernels.points[pick][0][i] + kernels.widths[i][pick] * normal[i, j]
    while True:
        outside = [(i, j) for i in range(numbers) for j in range(count) if not 0 <= found[i, j] <= 1]
        if not outside:
            break
        for (i, j), again in zip(outside, rng.standard_normal(len(outside)), strict=True):
            found[i, j] = kernels.points[kept[j]][0][i] + kernels.widths[i][kept[j]] * again
    return found


def suggested(coordinates, table, seed, number, candidates):
    """The suggestion in a space with infinitely many points, after the start-up."""
    rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, number, 1]))
    good = [int(place) for place in table.good()]
    others = [p for p in range(table.count) if p not in good and table.status[p] != GONE]
    point = coordinates.empty_point()
    share = 0.3 if len(table.scores) == 1 else 0.5
    for group in coordinates.groups:
        if not coordinates.is_active(group, point):
            continue
        near = [p for p in map(table.point, good) if coordinates.is_active(group, p)]
        rest = [p for p in map(table.point, others) if coordinates.is_active(group, p)]
        weights = [math.log(len(near) + 0.5) - math.log(i + 1) for i in range(len(near))]
        weights = [weight * len(near) / sum(weights) for weight in weights]
        better = Kernels(coordinates, group, near, weights)
        worse = Kernels(coordinates, group, rest, [1.0] * len(rest))
        u, c = draw(better, rng, candidates, len(group.numbers), len(group.choices))
        swap = rng.permutation(candidates)
        u = np.where(rng.random(u.shape) < share, u[:, swap], u)
        c = np.where(rng.random(c.shape) < share, c[:, swap], c)
        for row, choice in enumerate(group.choices):
            if number % 10 == 9 and any(
                other.branch and other.branch[0] == choice for other in coordinates.groups
            ):
                c[row] = rng.integers(coordinates.sizes[choice])
        for row, index in zip(u, group.numbers, strict=True):
            row[:] = coordinates.scales[index].snap(row)
        scores = [
            math.log(better.density(u[:, j], c[:, j])) - math.log(worse.density(u[:, j], c[:, j]))
            for j in range(candidates)
        ]
        best = max(range(candidates), key=scores.__getitem__)
        point.u[group.numbers], point.c[group.choices] = u[:, best], c[:, best]
    return Point(point.u, point.c)
