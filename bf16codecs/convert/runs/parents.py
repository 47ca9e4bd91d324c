"""Against which earlier step of its group a step is coded."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["candidates", "choose_parent", "max_depth"]

# What one step less on the way to a version is worth, of its size.
_WORTH_OF_A_STEP = 0.001

# How many of the last steps are tried: all, in a group of the default size.
_LAST = 16


def max_depth(group: int) -> int:
    """Return how many steps a step of a group may be away from the one that is coded whole.

    As many as the binary digits of their places take: 4 in a group of 16. So reading a step never
    decodes more than five, and a chain that is used up begins anew near the group's first step.
    """
    return max(1, math.ceil(math.log2(group)))


def candidates(depths: Mapping[int, int]) -> list[int]:
    """Return the places that are worth a try as a parent, ascending: some 28 of 4096 at most.

    The last ones, and of each depth the last that has it: weights drift, so of two steps that are
    as deep the later one is nearer.

    Parameters
    ----------
    depths
        By place, how many steps each earlier step is away from one that is coded whole.
    """
    places = sorted(depths)
    return sorted({*places[-_LAST:], *{depths[place]: place for place in places}.values()})


def choose_parent(
    sizes: Mapping[int, int], alone: int, depths: Mapping[int, int], limit: int
) -> int | None:
    """Choose the earlier step that a step is coded against.

    The one against which it is smallest, while that is not too deep. Where it is, one that leaves
    room for the next steps to follow on this one: a step that costs more is worth it if those after
    it cost as little as the smallest found.

    Parameters
    ----------
    sizes
        By the place of an earlier step, the (estimated) size as a difference to it.
    alone
        The size without any.
    depths
        By place, how many steps each is away from one that is coded whole.
    limit
        How deep this one may be.

    Returns
    -------
    int or None
        A place, or None: code it whole.

    Examples
    --------
    A chain, until it is as deep as allowed; then a new one from the first step:

    >>> choose_parent({0: 30, 1: 20, 2: 10}, 100, {0: 0, 1: 1, 2: 2}, limit=3)
    2
    >>> choose_parent({0: 24, 1: 20, 2: 18, 3: 10}, 100, {0: 0, 1: 1, 2: 2, 3: 3}, limit=3)
    0
    """
    if not sizes or min(sizes.values()) >= alone:
        return None
    smallest = min(sizes.values())

    def cost(place: int) -> float:
        room = limit - depths[place] - 1
        shared = (sizes[place] + room * smallest) / (1 + room)
        return shared * (1 + _WORTH_OF_A_STEP * depths[place])

    allowed = [place for place in sizes if depths[place] < limit and sizes[place] < alone]
    return min(allowed, key=cost, default=None)
