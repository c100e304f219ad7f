"""Cycles of a directed graph, in time linear in its edges (Tarjan's strongly connected components)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping


def cycles(edges: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of two or more nodes that all reach each other. No node has an edge to itself."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    is_on_stack: set[str] = set()
    components: list[list[str]] = []

    def enter(node: str) -> tuple[str, Iterator[str]]:
        numbers[node] = lowest[node] = len(numbers)
        stack.append(node)
        is_on_stack.add(node)
        return node, iter(edges.get(node, ()))

    for root in edges:
        if root in numbers:
            continue
        path = [enter(root)]  # a loop rather than recursion: histories are longer than Python's stack
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in numbers:
                    path.append(enter(successor))
                    break
                if successor in is_on_stack:
                    lowest[node] = min(lowest[node], numbers[successor])
            else:
                path.pop()
                if path:
                    before = path[-1][0]
                    lowest[before] = min(lowest[before], lowest[node])
                if lowest[node] == numbers[node]:
                    component: list[str] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        is_on_stack.discard(component[-1])
                    if len(component) > 1:
                        components.append(sorted(component))
    return components
